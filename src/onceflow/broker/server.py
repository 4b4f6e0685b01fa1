"""The running broker: opens the data directory, listens, keeps house, stops in an orderly way.

    server = Server(config, runtime)
    address = await server.start()
    await server.stop()

All state belongs to the loop that `start` ran on. When the disk fails the broker stops serving:
`failed` completes with the reason, and a restart recovers from what is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from onceflow.broker.config import BrokerConfig, ListenAddress
from onceflow.broker.net import (
    LOOK_SECONDS,
    AcceptedConnection,
    AnswerMemory,
    ConnectionSurroundings,
    RequestMemory,
    share_out,
)
from onceflow.broker.node import Node, NodeSurroundings
from onceflow.errors import DiskError, ListenFailed, OnceflowError
from onceflow.log import BLAMELESS, FailedJob, JournalTotals, LogStore
from onceflow.runtime import NO_LIMIT, Background, Clock, Disk, Listener, Net, Rand, TimerHandle
from onceflow.wire import ApiKey, Scratch

_MB = 1e6


class Totals(NamedTuple):
    """Requests served, by the number of their API; the journal's part is None without one."""

    served: Mapping[int, int]
    journal: JournalTotals | None
    failed_jobs: Mapping[str, int] = MappingProxyType({})
    """Housekeeping jobs: how often each has failed for one partition, and was put off."""

    def __str__(self) -> str:
        """`served 12 requests (Produce 10, Metadata 2), wrote 11 journal groups, 0.1 MB`"""
        requests = ", ".join(f"{name} {count}" for name, count in self._by_name().items())
        said = f"served {sum(self.served.values())} requests"
        if requests:
            said += f" ({requests})"
        if self.journal is not None:
            said += f", wrote {self.journal.groups} journal groups, "
            said += f"{self.journal.bytes / _MB:.1f} MB"
        if self.failed_jobs:
            jobs = ", ".join(f"{job} {count}" for job, count in sorted(self.failed_jobs.items()))
            said += f", {sum(self.failed_jobs.values())} jobs of housekeeping failed ({jobs})"
        return said

    def as_json(self) -> dict[str, Any]:
        """The same, exact, for machines."""
        return {
            "requests": self._by_name(),
            "journal": None if self.journal is None else self.journal._asdict(),
            "failed_jobs": dict(self.failed_jobs),
        }

    def _by_name(self) -> dict[str, int]:
        """The most frequent first."""
        ordered = sorted(self.served.items(), key=lambda each: (-each[1], each[0]))
        return {ApiKey(key).title: count for key, count in ordered}


_PRESSURE_BYTES = 16 << 20
_SWEEP_SECONDS = 5.0
_FRAME_SECONDS = 30.0
_LOOKS = "looks at slow senders"

_log = logging.getLogger(__name__)


def _tell_failed_job(failed: FailedJob) -> None:
    error = failed.error
    is_ours = isinstance(error, OnceflowError)
    _log.error(
        "%s failed for %s%s, and is tried again later: %s",
        failed.job,
        failed.subject,
        f" at {failed.path}" if failed.path else "",
        error if is_ours else f"{type(error).__name__}: {error}",
        exc_info=None if is_ours else error,
    )


@dataclass(frozen=True, slots=True)
class Runtime:
    """The outside world of the broker: clock, randomness, network, disk and threads."""

    clock: Clock
    rand: Rand
    net: Net
    disk: Disk
    background: Background
    descriptors: int = NO_LIMIT
    """How many files and sockets the broker may have open."""


class Server:
    """Started once, stopped once."""

    def __init__(self, config: BrokerConfig, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime
        self._scratch = Scratch()
        self._connections: dict[AcceptedConnection, None] = {}
        self._shares = share_out(runtime.descriptors, config)
        self._timers: dict[str, TimerHandle] = {}
        self._is_relief_due = False
        self._memory = RequestMemory(config.buffered_bytes, _FRAME_SECONDS, self._crowded)
        self._answers = AnswerMemory(config.buffered_bytes)
        self._store: LogStore | None = None
        self._node: Node | None = None
        self._listener: Listener | None = None
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    @property
    def node(self) -> Node:
        """The broker's state, once it was started."""
        if self._node is None:
            raise OnceflowError("the broker was not started")
        return self._node

    async def start(self) -> ListenAddress:
        """Recovers, listens and serves; the address that it listens on."""
        runtime = self._runtime
        started = runtime.clock.monotonic()
        self._store = LogStore.open(
            runtime.disk,
            runtime.background,
            runtime.rand,
            replace(self._config.to_store_config(), open_files=self._shares.files),
            self._store_failed,
            _tell_failed_job,
        )
        try:
            call_later = asyncio.get_running_loop().call_later
            surroundings = NodeSurroundings(
                runtime.clock, runtime.rand, call_later, runtime.background
            )
            self._node = Node(self._config, self._store, surroundings, self._settings_altered)
            # Before the broker listens: no client may see what a crash of this start would undo.
            self._store.make_durable()
        except BaseException:
            # What recovery found must still be so at the next start: it may be the one that repairs
            # what an unclean stop left.
            self._store.abandon()
            self._store = None
            raise
        self._report_recovery(runtime.clock.monotonic() - started)
        self._share_out()
        try:
            self._listener = await self._listen()
        except BaseException:
            self._store.close()
            self._store = None
            raise
        address = ListenAddress(self._config.listen.host, self._listener.port)
        self._node.listens_on(address)
        self._every("sweep", _SWEEP_SECONDS, self._sweep)
        seconds = self._config.log_retention_check_interval_ms / 1000
        self._every("retention", seconds, self._enforce_retention)
        self._compact_now_and_then()
        seconds = self._config.transaction_expiration_check_interval_ms / 1000
        self._every("forgetting transactional ids", seconds, self._node.expire_transactional_ids)
        seconds = self._config.producer_id_expiration_check_interval_ms / 1000
        self._every("forgetting producers", seconds, self._node.expire_producers)
        return address

    def _compact_now_and_then(self) -> None:
        if "compaction" in self._timers:
            self._timers["compaction"].cancel()  # the next look may have been days away
        self._every("compaction", self.node.config.log_cleaner_backoff_ms / 1000, self._compact)

    def _share_out(self) -> None:
        """As the settings are that hold: there may have been others when the store was opened."""
        self._shares = share_out(self._runtime.descriptors, self.node.config)
        self.node.store.limit_open_files(self._shares.files)
        self._report_limits()

    def _settings_altered(self, before: BrokerConfig) -> None:
        now = self.node.config
        if now.max_connections != before.max_connections:
            self._share_out()
        # Only then: an operator who alters something else every few seconds must not put
        # compaction off for ever.
        if now.log_cleaner_backoff_ms != before.log_cleaner_backoff_ms:
            self._compact_now_and_then()

    async def _listen(self) -> Listener:
        address = self._config.listen
        surroundings = ConnectionSurroundings(
            self.node,
            self._scratch,
            self._memory,
            self._answers,
            self._is_under_backpressure,
            self._connected,
            self._disconnected,
        )
        accept = partial(AcceptedConnection, surroundings)
        try:
            return await self._runtime.net.listen(address.host, address.port, accept)
        except OSError as error:
            raise ListenFailed(
                f"cannot listen on {address}: {error.strerror or error}. Is another broker running "
                "there? Stop it, or choose another address (--listen; port 0 is any free one)"
            ) from error

    def _report_recovery(self, seconds: float) -> None:
        if self._store is None or self._node is None:
            return
        report = self._store.report
        before = f"recovered {report.entries} journal entries ({report.replayed_bytes} bytes)"
        if report.clean:
            before = "new" if report.is_first else "stopped cleanly before"
        _log.info(
            "opened %s in %.0f ms: %d topics, %s, durability %s",
            self._config.data_dir,
            seconds * 1000,
            len(self._node.topics.by_name),
            before,
            self._config.durability,
        )
        if report.dropped_bytes:
            _log.warning("%d bytes behind the last sound batches were lost", report.dropped_bytes)
        for stray in report.strays:
            _log.warning("moved a directory aside that nothing acknowledged made: %s", stray)

    def _report_limits(self) -> None:
        wanted, granted = self.node.config.max_connections, self._shares.connections
        if granted < wanted:
            _log.info(
                "max.connections is %d, but %d descriptors (ulimit -n) are enough for %d beside "
                "the files of segments: raise that limit, or set max.connections to what you need",
                wanted,
                self._runtime.descriptors,
                granted,
            )

    def _report_totals(self) -> None:
        store = self.node.store
        totals = Totals(self.node.served, store.journal_totals, store.quarantine.failures)
        _log.info("%s", totals, extra={"numbers": totals.as_json()})

    # --- connections --------------------------------------------------------------------------

    def _connected(self, connection: AcceptedConnection) -> None:
        self._connections[connection] = None
        most = self._shares.connections
        if len(self._connections) > most:
            connection.close(f"there are {most} connections already")

    def _disconnected(self, connection: AcceptedConnection) -> None:
        self._connections.pop(connection, None)

    def _is_under_backpressure(self) -> bool:
        """Whether nothing more should be read: the journal cannot keep up."""
        if self._store is None or self._store.waiting_bytes < _PRESSURE_BYTES:
            return False
        if not self._is_relief_due:
            self._is_relief_due = True
            self._store.flush().add_done_callback(self._relieved)
        return True

    def _crowded(self) -> None:
        """Large requests wait for room: what all connections hold is kept small, and those that
        take room and do not use it are looked for."""
        self._scratch.narrow()
        if _LOOKS not in self._timers:
            self._look_at_senders_later()

    def _look_at_senders_later(self) -> None:
        timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_at_senders)
        self._timers[_LOOKS] = timer

    def _look_at_senders(self) -> None:
        if not self._memory.is_crowded:
            del self._timers[_LOOKS]
            self._scratch.widen()
            return
        self._look_at_senders_later()
        if not self._is_under_backpressure():  # else it is we who do not read
            for connection, reason in self._memory.look(self._runtime.clock.monotonic()):
                connection.close(reason)

    def _relieved(self, error: Exception | None) -> None:
        self._is_relief_due = False
        for connection in list(self._connections):
            connection.look_again()

    # --- keeping house ------------------------------------------------------------------------

    def _every(self, name: str, seconds: float, work: Callable[[], None]) -> None:
        def tick() -> None:
            self._every(name, seconds, work)  # first: whatever happens below, there is a next time
            try:
                work()
            except BLAMELESS as error:
                _log.warning("%s failed: %s", name, error)
            except Exception as error:
                self.node.store.quarantine.report(name, "the broker", "", error)

        self._timers[name] = asyncio.get_running_loop().call_later(seconds, tick)

    def _sweep(self) -> None:
        """Closes connections that are idle, or that never finish a request."""
        now = self._runtime.clock.monotonic()
        longest = self._config.connections_max_idle_ms / 1000
        for connection in list(self._connections):
            silent = now - connection.last_heard
            unfinished = connection.seconds_in_frame(now)
            if unfinished > _FRAME_SECONDS:
                connection.close(f"half a request, and no more of it in {unfinished:.0f} s")
            elif silent > longest and not connection.is_waiting:
                connection.close(f"idle for {silent:.0f} s")
            elif connection.is_abandoned:
                connection.abort()
        if self.node.store.failure is None:
            # What found no room on the disk, or no descriptor, and waits: there may be some now,
            # and nothing else would look unless a client sent more.
            self.node.store.look_again()

    def _enforce_retention(self) -> None:
        work = self.node.store.retention(self._runtime.clock.wall_ms())
        self.node.slices.run("retention", work)

    def _compact(self) -> None:
        self.node.store.compact(self._runtime.clock.wall_ms())

    def _store_failed(self, error: Exception) -> None:
        _log.critical("the disk failed, the broker stops: %s", error)
        if not self.failed.done():
            self.failed.set_result(error)

    # --- the end ------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answers what can be answered, hangs up, and leaves a clean data directory."""
        for timer in self._timers.values():
            timer.cancel()
        # In this order: no new clients, then nothing that would begin new writes, then the store,
        # whose last flush answers the waiting requests, and only then the connections.
        if self._listener is not None:
            await self._listener.close()
        if self._node is not None:
            self._node.transactions.close()
            self._node.groups.close()
            self._node.slices.close()
        try:
            if self._store is not None:
                self._store.close()  # makes durable what waits, and so answers it
                self._report_totals()
        except DiskError as error:
            _log.warning("not a clean stop, so the next start has to recover: %s", error)
        finally:
            await asyncio.sleep(0)  # what has become ready leaves in this turn of the loop
            for connection in list(self._connections):
                connection.abort()
            self._runtime.background.close()
