"""A broker inside a program or a test, in two lines:

    with onceflow.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

It listens on a free port of 127.0.0.1, keeps its data in a temporary directory, and is over, with
all that belongs to it, when the block is left, however it is left. `async with` does the same
and does not block the caller's loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from onceflow.broker.config import ListenAddress, load_config
from onceflow.broker.embedded.hosts import (
    BrokerEnded,
    BrokerNotStarted,
    Host,
    ProcessHost,
    ThreadHost,
)
from onceflow.broker.embedded.log import MOST_LINES
from onceflow.broker.embedded.signals import done_when_signalled, watch_signals
from onceflow.errors import InvalidSetting, OnceflowError
from onceflow.settings import dotted, text_of

if TYPE_CHECKING:
    from onceflow.broker.config import BrokerConfig


_PATIENT: Final = {"socket.connection.setup.timeout.ms": 60_000}
"""The broker is there, however long a busy machine takes to load what its first answer needs."""


def checked_topics(topics: object) -> dict[str, int]:
    """By name, with the number of their partitions."""
    if topics is None:
        return {}
    rows = dict(topics) if isinstance(topics, Mapping) else None
    if rows is None or not all(
        isinstance(name, str) and type(count) is int for name, count in rows.items()
    ):
        raise InvalidSetting(
            f"topics is {topics!r}; pass names with their numbers of partitions, as in "
            "{'orders': 3}"
        )
    for name, count in rows.items():
        # The protocol has -1 for "as many as the broker likes": a topic that has them at a restart
        # would not have the number that was asked for.
        if count < 1:
            raise InvalidSetting(f"topics gives {name!r} {count} partitions; a topic has 1 or more")
    return rows


def checked_port(port: object) -> str:
    """As the setting `listen` has it."""
    if type(port) is not int or not 0 <= port <= 65_535:
        raise InvalidSetting(f"port is {port!r}; pass a whole number from 0 to 65535")
    return f"127.0.0.1:{port}"


def make_topics(bootstrap: str, topics: Mapping[str, int]) -> None:
    """Creates those that are not there; raises what a broker says to it, and `InvalidSetting` when
    one that is there has another number of partitions."""
    from onceflow.blocking import Admin

    with Admin(bootstrap, _PATIENT) as admin:
        known = {each.name: len(each.partitions) for each in admin.list_topics()}
        for name, count in topics.items():
            if name not in known:
                admin.create_topic(name, partitions=count)
            elif known[name] != count:
                raise InvalidSetting(
                    f"topic {name!r} should have {count} partitions, but exists with {known[name]}"
                )


__all__ = ["Broker", "BrokerEnded", "BrokerMisused", "BrokerNotStarted", "SettingValue"]

SettingValue = str | int | bool | Path
DEFAULTS: Final[Mapping[str, SettingValue]] = {
    "listen": "127.0.0.1:0",
    "group.initial.rebalance.delay.ms": 0,
}
_DATA_DIR: Final = "data.dir"
_VANISH_TRIES: Final = 10


class BrokerMisused(OnceflowError):
    """Something was asked of an embedded broker that it cannot do, or not now."""


class _State(Enum):
    NEW = "was not started"
    RUNNING = "is running"
    KILLED = "was killed"
    STOPPED = "was stopped"


_ALLOWED: Final[Mapping[str, frozenset[_State]]] = {
    "start": frozenset({_State.NEW}),
    "restart": frozenset({_State.RUNNING, _State.KILLED}),
    "kill": frozenset({_State.RUNNING}),
    "bootstrap": frozenset({_State.RUNNING, _State.KILLED}),
    "pid": frozenset({_State.RUNNING, _State.KILLED}),
    "data_dir": frozenset({_State.RUNNING, _State.KILLED, _State.STOPPED}),
}
"""What may be asked for when; `stop` always may."""
_FOR_CHILDREN: Final = frozenset({"bootstrap", "data_dir"})
"""What a forked child may ask for."""


class Broker:
    """A broker to be used in a `with` block, or between `start` and `stop`; once.

    It runs on a thread of its own. With `process=True` it runs in a process of its own, which a
    test can `kill` and `restart`; take that too where the program forks while the broker runs.
    `data_dir`, or the setting `data.dir`, keeps the data, which are otherwise temporary. Settings
    go by Kafka's names, with underscores as keywords (`num_partitions=3`) or as they are in a
    mapping (`Broker({"log.retention.ms": 1000})`); those in the environment do not count. Two have
    other defaults here than in `onceflow serve`: `listen` is any free port of 127.0.0.1, and
    `group.initial.rebalance.delay.ms` is 0, because a test should not wait for members to come.
    `topics={"orders": 3}` are there, with so many partitions, when it has started; `port` is short
    for a `listen` on 127.0.0.1.

    A wrong setting raises `InvalidSetting`; all else that keeps it from starting raises
    `BrokerNotStarted`. When it ended before the program stopped it, leaving the block raises
    `BrokerEnded`, unless there is an exception under way already; so it is with a process that
    a signal has killed, unless that was `kill`.

    A child that the program forks may use `bootstrap`; for it, `stop` does nothing.

    >>> from onceflow.blocking import Admin
    >>> with Broker(topics={"orders": 3}) as broker, Admin(broker.bootstrap) as admin:
    ...     print(len(admin.describe_topic("orders").topic.partitions))
    3
    """

    def __init__(
        self,
        settings: Mapping[str, SettingValue] | None = None,
        /,
        *,
        process: bool = False,
        topics: Mapping[str, int] | None = None,
        port: int | None = None,
        data_dir: str | Path | None = None,
        durability: str | None = None,
        **more_settings: SettingValue,
    ) -> None:
        self._is_process = process
        self._topics = checked_topics(topics)
        self._settings = {
            **_texts(DEFAULTS),
            **_texts(settings or {}),
            **({} if durability is None else {"durability": durability}),
            **_texts(more_settings),
        }
        self._kept_dir = _kept_dir(data_dir, self._settings.pop(_DATA_DIR, None))
        if port is not None:
            if self._settings["listen"] != DEFAULTS["listen"]:
                raise InvalidSetting("port and listen are both given: listen has a port already")
            self._settings["listen"] = checked_port(port)
        self._state = _State.NEW
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._cleanup = ExitStack()
        self._host: Host | None = None
        self._data_dir = Path()
        self._address = ListenAddress("", 0)
        self._reserved: socket.socket | None = None
        self._log_before = ""

    def __repr__(self) -> str:
        host = "a process" if self._is_process else "a thread"
        where = f" at {self._address}, data in {self._data_dir}" if self._address.port else ""
        return f"<Broker in {host}{where}, {self._state.value}>"

    # --- what it is ---------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """`HOST:PORT`, for `bootstrap.servers`. The same after a restart."""
        self._require("bootstrap")
        return str(self._address)

    @property
    def data_dir(self) -> Path:
        """Where the data are, or were."""
        self._require("data_dir")
        return self._data_dir

    @property
    def pid(self) -> int:
        """The broker's own process; with `process=True` only. Another one after a restart."""
        self._require("pid")
        return self._process_host("pid").pid

    @property
    def log_text(self) -> str:
        """The last lines that it logged, also when it is over."""
        text = self._log_before + (self._host.log_text if self._host else "")
        return "".join(text.splitlines(keepends=True)[-MOST_LINES:])

    # --- start and stop -----------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when clients can connect."""
        with self._lock:
            self._require("start")
            self._owner = os.getpid()
            try:
                self._prepare()
                self._start_host()
                self._make_topics()
            except BaseException:
                self._finish()
                raise
            atexit.register(self.stop)
            self._cleanup.callback(atexit.unregister, self.stop)
        return self

    def stop(self) -> None:
        """Ends it in an orderly way, and removes what is temporary. May be repeated."""
        self._end()

    def restart(self) -> None:
        """Starts it again on the same data and the same port, after a `kill` or a clean stop."""
        with self._lock:
            self._require("restart")
            try:
                self._stop_host()
                self._start_host()
            except BaseException:
                self._finish()
                raise

    def kill(self) -> None:
        """SIGKILL; with `process=True` only. Returns when the process is gone."""
        with self._lock:
            self._require("kill")
            self._process_host("kill").kill()
            self._state = _State.KILLED

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failure = self._end()
        if failure is not None and error is None:
            raise BrokerEnded(f"the broker ended too early: {failure}") from failure

    async def __aenter__(self) -> Self:
        watch_signals()  # here, for `start` runs on a thread that cannot
        try:
            await _beside(self.start)
        except asyncio.CancelledError:
            await _beside(self.stop)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await _beside(lambda: self.__exit__(kind, error, traceback))

    # --- inside -------------------------------------------------------------------------------

    def _require(self, what: str) -> None:
        if os.getpid() != self._owner and what not in _FOR_CHILDREN:
            raise BrokerMisused(f"{what}: this process was forked off the one that has the broker")
        if self._state not in _ALLOWED[what]:
            again = "; make a new Broker" if self._state is _State.STOPPED else ""
            raise BrokerMisused(f"{what}: this broker {self._state.value}{again}")

    def _process_host(self, what: str) -> ProcessHost:
        if not isinstance(self._host, ProcessHost):
            raise BrokerMisused(f"{what}: the broker has no process; use Broker(process=True)")
        return self._host

    def _prepare(self) -> None:
        """Settings, directory and port, which stay the same over restarts."""
        config = self._config("unused" if self._kept_dir is None else self._kept_dir)
        listen = config.listen
        if self._kept_dir is None:
            self._cleanup.enter_context(done_when_signalled(self._vanish))
            self._data_dir = Path(tempfile.mkdtemp(prefix="onceflow-"))
            self._cleanup.callback(shutil.rmtree, self._data_dir, ignore_errors=True)
        else:
            self._data_dir = config.data_dir.absolute()
        self._reserved = self._cleanup.enter_context(_reserve(listen))
        self._address = ListenAddress(listen.host, self._reserved.getsockname()[1])
        self._settings |= {"listen": str(self._address)}

    def _config(self, data_dir: str) -> BrokerConfig:
        return load_config({**self._settings, _DATA_DIR: data_dir}, {}, None)

    def _vanish(self) -> None:
        """A signal ends the program right now: the temporary data will not be read again."""
        if isinstance(self._host, ProcessHost):
            self._host.kill_unheard()
        tries = _VANISH_TRIES  # a broker on a thread runs on, and may make files meanwhile
        while self._data_dir != Path() and self._data_dir.exists() and tries:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            tries -= 1

    def _start_host(self) -> None:
        if self._is_process:
            self._host = ProcessHost({**self._settings, _DATA_DIR: str(self._data_dir)})
        else:
            self._host = ThreadHost(self._config(str(self._data_dir)))
        try:
            self._host.start()
        except (OnceflowError, OSError) as error:
            raise BrokerNotStarted(f"the broker did not start: {error}") from error
        self._state = _State.RUNNING

    def _make_topics(self) -> None:
        if not self._topics:
            return
        try:
            make_topics(self.bootstrap, self._topics)
        except InvalidSetting:
            raise
        except OnceflowError as error:
            raise BrokerNotStarted(f"the broker could not create its topics: {error}") from error

    def _stop_host(self) -> Exception | None:
        if self._host is None:
            return None
        failure = self._host.stop()
        self._log_before, self._host = self.log_text, None
        return failure

    def _end(self) -> Exception | None:
        if os.getpid() == self._owner:
            with self._lock:
                return self._finish()
        # A forked child: the broker, its data and even the lock are the parent's. Another thread of
        # the parent may have held that lock during the fork, and here it would never be released.
        if self._reserved is not None:
            self._reserved.close()
        return None

    def _finish(self) -> Exception | None:
        with self._cleanup:
            self._state = _State.STOPPED
            return self._stop_host()


def _kept_dir(keyword: str | Path | None, setting: str | None) -> str | None:
    """Where the data are to be kept; None: nowhere."""
    keyword = None if keyword is None else str(keyword)
    if keyword is None or setting is None:
        return keyword if setting is None else setting
    if Path(keyword).absolute() != Path(setting).absolute():
        raise InvalidSetting(
            f"data_dir is {keyword!r} and the setting {_DATA_DIR} is {setting!r}: a broker has one "
            "data directory; give one of them"
        )
    return keyword


def _texts(settings: Mapping[str, SettingValue]) -> dict[str, str]:
    """Settings by their dotted names, as a configuration file would have them."""
    return {dotted(name): text_of(value) for name, value in settings.items()}


def _reserve(listen: ListenAddress) -> socket.socket:
    """A socket that holds the port, on which only the broker listens.

    Between a kill and a restart nobody else is given the port: no other broker, and no client
    that tries to connect to it and would otherwise find itself at the other end.
    """
    try:
        found = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = found[0]
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(place)
        except OSError:
            reserved.close()
            raise
    except OSError as error:
        raise BrokerNotStarted(
            f"the broker cannot listen on {listen}: {error.strerror}; "
            "choose another address, or port 0 for any that is free"
        ) from error
    return reserved


async def _beside(work: Callable[[], object]) -> None:
    """Runs blocking work on another thread. It cannot be interrupted: a cancellation waits."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
