"""The broker that a pipeline starts beside itself: a process of its own, for as long as it runs.

When it dies, it is started again on the same data and at the same address, and the pipeline goes
on; but not for ever: one that dies again before a batch is committed ends the pipeline.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from onceflow.client import Cluster, ReaderSettings, TopicNotFound, create_topic
from onceflow.errors import OnceflowError
from onceflow.spark.errors import InvalidPipeline, KeyProblem, MasterRefused, PipelineFailed
from onceflow.spark.pipeline.plan import SINGLE, PipelinePlan
from onceflow.spark.session import is_local
from onceflow.spark.sink import run_on_own_thread

if TYPE_CHECKING:
    from onceflow.broker import Broker

_LISTEN: Final = "127.0.0.1:9092"
_POLL_S: Final = 0.2
_log = logging.getLogger("onceflow.spark")


class PipelineBroker:
    """A broker that runs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._batches_then = -1
        self._is_over = threading.Event()
        self._watcher: threading.Thread | None = None
        self.pid = broker.pid
        """Another one after it was revived. Kept here: while it is started again it has none."""
        self.failure: OnceflowError | None = None
        """Why it could not be started again."""

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def kill(self) -> None:
        self._broker.kill()

    def watch(self, batches: Callable[[], int]) -> None:
        """From now on it is started again when it dies; `batches` says how many are committed."""
        self._watcher = threading.Thread(target=self._watch, args=(batches,), daemon=True)
        self._watcher.start()

    def unwatch(self) -> None:
        self._is_over.set()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self, batches: Callable[[], int]) -> None:
        while self.failure is None and not self._is_over.wait(_POLL_S):
            try:
                self.revive(batches())
            except OnceflowError as error:
                self.failure = error

    def revive(self, batches: int) -> None:
        """Starts it again if it has ended; `batches` is how many were committed so far. Raises
        `PipelineFailed` when there were none since it was last revived, and `BrokerNotStarted`."""
        if not _has_ended(self.pid):
            return
        if batches == self._batches_then:
            raise PipelineFailed(
                "the broker that runs beside the pipeline has ended again before a batch was "
                f"committed. It said: {_last_line(self._broker.log_text)}",
                advice="look at what it said and at the disk; the next start goes on",
            )
        self._batches_then = batches
        _log.warning("the broker that runs beside the pipeline has ended; it is started again")
        _without_interrupts(self._broker.restart)
        self.pid = self._broker.pid


@contextmanager
def pipeline_broker(plan: PipelinePlan, master: str) -> Iterator[PipelineBroker]:
    """Raises `MasterRefused` for a master on another machine, and `BrokerNotStarted`."""
    from onceflow.broker import Broker

    if not is_local(master):
        raise MasterRefused(
            f"there is no source.bootstrap, and {master} is not this machine: a broker that is "
            "started here can be reached from here only. Give the address of one that executors "
            "reach"
        )
    settings = {"listen": _LISTEN, **plan.broker}
    data_dir = settings.pop("data.dir")
    broker = Broker(settings, process=True, data_dir=data_dir)
    _without_interrupts(broker.start)
    beside = PipelineBroker(broker)
    try:
        yield beside
    finally:
        beside.unwatch()
        broker.stop()


def _without_interrupts(start: Callable[[], object]) -> None:
    """Ctrl-C in a terminal, and its end, go to all processes; the broker has to outlive the last
    batch."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_ended(pid: int) -> bool:
    """Leaves it to its owner to take note of its end."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "nothing"


# --- topics of the pipeline ----------------------------------------------------------------------


_SUBSCRIBE = "subscribe"


def require_topics(plan: PipelinePlan, settings: ReaderSettings, *, make: bool) -> None:
    """Raises `InvalidPipeline` with all that are missing; `make` creates them instead."""
    missing = run_on_own_thread(_missing(plan, settings, make=make))
    if missing:
        raise InvalidPipeline(missing)


async def _missing(plan: PipelinePlan, settings: ReaderSettings, *, make: bool) -> list[KeyProblem]:
    problems = []
    async with Cluster(settings.bootstrap_servers, settings.cluster()) as cluster:
        for source in plan.sources:
            path = ("source",) if source.name == SINGLE else ("source", source.name)
            for topic in filter(None, source.options.get(_SUBSCRIBE, "").split(",")):
                try:
                    await cluster.find_topic(topic)
                except TopicNotFound:
                    if make:
                        await create_topic(cluster, topic)
                    else:
                        text = f"there is no topic {topic!r}; `onceflow topics create` makes one"
                        problems.append(KeyProblem((*path, "topics"), text))
    return problems
