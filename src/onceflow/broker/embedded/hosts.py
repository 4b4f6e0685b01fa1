"""Where an embedded broker runs: on a thread of this process, or in a process of its own.

A host starts one broker and ends it, once. `start` raises what kept the broker from serving;
`stop` returns when everything is over, with the error that ended the broker earlier, if any.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Protocol

from onceflow.broker.config import PREFIX, BrokerConfig, ListenAddress
from onceflow.broker.embedded.log import MOST_LINES, LogBuffer, attach, detach
from onceflow.errors import OnceflowError
from onceflow.runtime import loading

READY: Final = "listening on "
_STOP_SECONDS: Final = 30.0


class BrokerNotStarted(OnceflowError):
    """A broker did not start; the message says why, as far as it is known."""


class BrokerEnded(OnceflowError):
    """A broker ended although the program did not stop it."""


class Host(Protocol):
    """A place for one broker."""

    @property
    def log_text(self) -> str: ...

    def start(self) -> None:
        """Returns when clients can connect."""

    def stop(self) -> Exception | None:
        """Ends the broker in an orderly way, if it still runs."""


class ThreadHost:
    """A thread with an event loop of its own."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._log = LogBuffer(config.log_level)
        self._ready: Future[ListenAddress] = Future()
        self._thread = threading.Thread(target=self._run, name="onceflow-broker", daemon=True)
        self._is_told_to_stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def log_text(self) -> str:
        return self._log.text

    def start(self) -> None:
        attach(self._log)
        self._thread.start()
        self._ready.result()

    def _run(self) -> None:
        self._log.adopt_thread()
        try:
            # Only now, because it loads most of the broker. Inside `loading`, because the program
            # may fork meanwhile: its child would have a module that stays half loaded for ever.
            with loading:
                from onceflow.broker.main import run

            run(self._config, self._is_ready, self._stop.wait, owns_process=False)
        except Exception as error:
            if self._ready.done():
                self._failure = error
            else:
                self._ready.set_exception(error)

    def _is_ready(self, address: ListenAddress) -> None:
        self._loop = asyncio.get_running_loop()
        # What the broker does beside its loop is its own too.
        self._loop.set_default_executor(
            ThreadPoolExecutor(1, "onceflow-beside", initializer=self._log.adopt_thread)
        )
        if self._is_told_to_stop.is_set():
            self._stop.set()
        self._ready.set_result(address)

    def stop(self) -> Exception | None:
        self._is_told_to_stop.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the broker ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join()
        detach(self._log)
        return self._failure


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the many without a name
        return f"signal {number}"


class ProcessHost:
    """`onceflow serve` in a process of its own, which a test may kill. It ends when this process
    does, however that ends: an orphan would keep the data directory locked."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        # -P: the broker must not load modules out of the directory that the program runs in.
        command = [sys.executable, "-P", "-m", "onceflow", "serve", f"--parent={os.getpid()}"]
        command += [f"--set={key}={value}" for key, value in settings.items()]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(PREFIX)
        }
        self._command, self._environment = command, environment
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._ready: Future[None] = Future()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._was_killed = False

    @property
    def log_text(self) -> str:
        return "".join(self._lines.copy())

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerEnded("the broker was not started")
        return self._process.pid

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(
            target=self._read, args=(self._process,), name="onceflow-broker-log", daemon=True
        )
        self._reader.start()
        self._ready.result()

    def _read(self, process: subprocess.Popen[str]) -> None:
        """All that the process says, to its end, so that it never waits for a reader."""
        for line in process.stdout or ():
            self._lines.append(line)
            if line.startswith(READY) and not self._ready.done():
                self._ready.set_result(None)
        if not self._ready.done():
            self._ready.set_exception(BrokerNotStarted(self._last_words()))

    def _last_words(self) -> str:
        said = self.log_text.strip()
        _, mark, error = said.rpartition("error: ")
        return error if mark else said or "the broker's process ended without a message"

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        if self._process is not None:
            self._was_killed = self._process.poll() is None
            self._process.kill()
            self._end(self._process)

    def kill_unheard(self) -> None:
        """SIGKILL, and waits until the process does nothing more; leaves it to others to take note
        of its end, whose locks the calling signal handler may have interrupted."""
        if self._process is not None:
            self._process.kill()
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def stop(self) -> Exception | None:
        process = self._process
        if process is None:
            return None
        has_ended = process.poll() is not None
        if not has_ended:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._end(process)
        # Status 0 is an orderly end that somebody asked for, if not this program.
        if not has_ended or self._was_killed or process.returncode == 0:
            return None
        if process.returncode > 0:
            return BrokerEnded(
                f"the broker ended with status {process.returncode}: {self._last_words()}"
            )
        *_, last_line = ["", *self.log_text.splitlines()]
        return BrokerEnded(
            f"the broker was killed by {_signal_name(-process.returncode)}; the last line of its "
            f"log: {last_line}"
        )

    def _end(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        if self._reader is not None:
            self._reader.join()
        if process.stdout is not None:
            process.stdout.close()
