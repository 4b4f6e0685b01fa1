"""Code that is compiled beside the program, which runs a slower form of it meanwhile.

Compiling takes seconds, and a fresh installation has nothing compiled. So its first calls run the
slower form. When that has cost the process more than a moment, a thread has another process of low
priority compile what was called, into a cache on the disk, and takes it over from there piece by
piece. A program that ends sooner has compiled nothing, and ends the other process too.

Of all processes that share a cache one compiles at a time, and the others load its results. Without
a cache, or without a process, the thread compiles here. No call ever fails because of this: the
slower form gives the same answers.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from onceflow.runtime.imports import loading

_T = TypeVar("_T")

PATIENCE_SECONDS: Final = 0.1
"""The slower form may cost a process this much CPU time before anything is compiled."""
_LOOK_SECONDS: Final = 0.5
"""How often a process that waits for another one to compile looks for its results."""
_LOCK_NAME: Final = "onceflow-compiling.lock"
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

_log = logging.getLogger(__name__)

at_import: Final = threading.Event()
"""Set it to measure compiled code, or to fill a cache for others: functions loaded from then on are
compiled at once, and never run in their slower form."""


class Code(ABC):
    """A function in its slower form, which can be exchanged for a compiled one."""

    name: str
    """`module:function`."""

    @abstractmethod
    def load(self) -> bool:
        """Loads the compiled form from the cache; returns whether it was there. Takes
        milliseconds."""

    @abstractmethod
    def compile(self) -> None:
        """Compiles it, and puts the result in the cache. Takes seconds."""


class Cache(NamedTuple):
    """Where compiled code is kept, and the environment in which another process finds it."""

    directory: str | None
    environment: Mapping[str, str]


class ChildKilled(Exception):
    """The compiling process was killed, perhaps for lack of memory."""


class Compiling:
    """The functions of this process that are to be compiled, and the thread that does it."""

    def __init__(self, find_cache: Callable[[], Cache]) -> None:
        self._find_cache = find_cache
        self._patience = PATIENCE_SECONDS
        self._costs: dict[str, float] = {}
        self._codes: dict[str, Code] = {}
        self._lock: int | None = None
        self._is_forked = False
        self._forget_the_thread()
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """In a forked child: the thread, the lock and the process are its parent's."""
        if self._lock is not None:
            os.close(self._lock)  # the parent keeps its own
        self._lock = None
        # The parent may have called a kernel only once, long ago, and so never compiled it.
        self._is_forked = True
        self._forget_the_thread()

    def _forget_the_thread(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._turn = threading.Lock()
        self._is_stopped = threading.Event()
        self._spent = 0.0

    @property
    def child(self) -> subprocess.Popen[str] | None:
        """The process that compiles now."""
        return self._child

    @property
    def thread(self) -> threading.Thread | None:
        """The thread that manages the compiling now."""
        return self._thread

    def run(self, code: Code, slow: Callable[..., _T], arguments: tuple[Any, ...]) -> _T:
        """Calls the slower form, and has it compiled once that has cost too much."""
        began = time.thread_time()
        try:
            return slow(*arguments)
        finally:
            self._note(code, time.thread_time() - began)

    def _note(self, code: Code, seconds: float) -> None:
        self._codes[code.name] = code
        self._costs[code.name] = self._costs.get(code.name, 0.0) + seconds
        self._spent += seconds
        # Never waits: a signal handler may have interrupted the very thread that begins.
        is_due = self._is_forked or self._spent >= self._patience
        if is_due and self._turn.acquire(blocking=False):
            try:
                self._begin()
            finally:
                self._turn.release()

    def _begin(self) -> None:
        if self._thread is not None or self._is_stopped.is_set():
            return
        work: Callable[[], object] = self._compile_all
        if self._spent < self._patience:
            work = self._load_kept  # nothing is compiled for a child that may end at once
        else:
            self._spent = 0.0
        self._is_forked = False
        thread = threading.Thread(
            target=self._run, args=(work,), name="onceflow-compile", daemon=True
        )
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # there is no room for a thread, or the program is about to end
            self._thread = None

    def stop(self) -> None:
        """Nothing is compiled from now on; the other process is gone when this returns."""
        self._is_stopped.set()
        child = self._child
        if child is not None:
            child.kill()
            child.wait()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            # Trying again would cost seconds each time, and the slower form is right, too.
            self._patience = float("inf")
            _log.warning("this process goes on without compiled code: %s", error)
        finally:
            self._thread = None

    def _compile_all(self) -> None:
        cache = self._find_cache()
        if cache.directory is None:
            self._compile_here(list(self._codes.values()), "there is no place to keep them")
            return
        with self._lock_of(cache.directory):
            missing = self._load_kept()
            if missing and not self._is_stopped.is_set():
                self._compile_beside(missing, cache)

    def _load_kept(self) -> list[Code]:
        """Loads what the cache has; returns the rest, the most expensive first."""
        missing = []
        for name in sorted(self._codes, key=lambda each: -self._costs[each]):
            if not self._load(name):
                missing.append(self._codes[name])
        return missing

    def _load(self, name: str) -> bool:
        with loading:  # a fork must not find the compiler's locks taken
            is_loaded = self._codes[name].load()
        if is_loaded:
            del self._codes[name]
        return is_loaded

    @contextmanager
    def _lock_of(self, directory: str) -> Iterator[None]:
        """Entered when no other process compiles for this cache, or nothing is left to compile."""
        try:
            with loading:  # a forked child must know that it has the lock file open
                lock = self._lock = os.open(Path(directory) / _LOCK_NAME, _LOCK_FLAGS, 0o600)
        except OSError:  # another user's, perhaps: then both compile
            yield
            return
        try:
            while not _is_locked(lock) and self._load_kept():
                if self._is_stopped.wait(_LOOK_SECONDS):
                    break
            yield
        finally:
            self._lock = None
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child may have it open still
            os.close(lock)

    def _compile_beside(self, missing: list[Code], cache: Cache) -> None:
        began = time.monotonic()
        _log.info(
            "compiling %d functions in another process; until they are there records are handled "
            "more slowly, and the next start finds them",
            len(missing),
        )
        problem = self._have_compiled([code.name for code in missing], cache)
        if self._is_stopped.is_set():
            return
        left = [code for code in self._load_kept() if code in missing]  # others were called since
        if left:
            self._compile_here(left, problem)
        else:
            _log.info("compiled after %.1f s", time.monotonic() - began)

    def _have_compiled(self, names: list[str], cache: Cache) -> str:
        """Starts the process and loads its results until it ends; returns its last words."""
        if not _can_start_python():
            return f"{sys.executable or 'this program'} is not a Python that can be started"
        try:
            with loading:  # a forked child would keep the pipes open
                child = self._child = _start_child(names, cache)
        except (OSError, subprocess.SubprocessError) as error:
            return f"no process can be started: {error}"
        last = ""
        if self._is_stopped.is_set():
            child.kill()
        try:
            for line in child.stdout or ():
                last = line.strip() or last
                if last in self._codes:
                    self._load(last)
        finally:
            status = child.wait()
            self._child = None
        if status < 0 and not self._is_stopped.is_set():
            raise ChildKilled(f"the process that compiled was killed by signal {-status}")
        return f"the process that compiled ended with status {status}: {last}"

    def _compile_here(self, codes: list[Code], reason: str) -> None:
        """Shares the interpreter with all other threads, for seconds."""
        began = time.monotonic()
        _log.info("compiling %d functions in this process: %s", len(codes), reason)
        for code in codes:
            with loading:
                code.compile()
            del self._codes[code.name]
        _log.info("compiled after %.1f s", time.monotonic() - began)


def _is_locked(lock: int) -> bool:
    """Whether this process has the lock now; also where there can be none."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: then everybody compiles
        return True
    return True


def _can_start_python() -> bool:
    """In a frozen program, or one that embeds Python, the executable is the program itself."""
    name = Path(sys.executable or "").name
    return name.startswith("python") and not getattr(sys, "frozen", False)


def _start_child(names: list[str], cache: Cache) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **cache.environment,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return subprocess.Popen(
        # -P: it must not load modules out of the directory that the program runs in.
        [sys.executable, "-P", "-m", "onceflow.runtime.compiling.child", str(os.getpid()), *names],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C is for the program, which may go on after it
    )
