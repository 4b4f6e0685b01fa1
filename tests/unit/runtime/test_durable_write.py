"""Durable writes with real files: which the owner does itself, and which a thread does."""

from __future__ import annotations

import asyncio
import mmap
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from onceflow.errors import DiskFailed, StoreFailed
from onceflow.log.journal.journal import Ticket
from onceflow.log.store import LogStore, StoreConfig
from onceflow.runtime.background import Job, JobLane, Threads
from onceflow.runtime.disk import BLOCK_SIZE, Access, DurableWrite, RealDisk, RealFile
from onceflow.runtime.rand import RealRand
from onceflow.types import LogId
from tests.unit.log.simulated_store import append, new_batch

PATH = "written"
LARGE = (512 << 10) + BLOCK_SIZE


@pytest.fixture(autouse=True)
def _quick_disk() -> Iterator[None]:
    """A disk that a busy machine slows down would be left to threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onceflow.runtime.disk.perf_counter", lambda: 0.0)
        yield


@pytest.fixture
def file(tmp_path: Path) -> RealFile:
    disk = RealDisk(tmp_path)
    disk.open(PATH, Access.CREATE).pwrite(0, bytes(LARGE))
    opened = disk.open(PATH, Access.DIRECT)
    if not opened.is_direct:
        pytest.skip("this file system has no direct I/O")
    return opened


def block(letter: bytes, size: int = BLOCK_SIZE) -> memoryview:
    memory = mmap.mmap(-1, size)
    memory[:] = letter * size
    return memoryview(memory)


def submitted(background: Threads, write: DurableWrite) -> tuple[bool, Exception | None]:
    """Whether it was done at once, and its outcome."""
    outcomes: list[Exception | None] = []
    background.submit(JobLane.JOURNAL, write, outcomes.append)
    at_once = bool(outcomes)
    background.wait(lambda: bool(outcomes))
    return at_once, outcomes[0]


def test_a_direct_write_of_moderate_size_is_done_at_once(file: RealFile, tmp_path: Path) -> None:
    background = Threads()
    assert submitted(background, DurableWrite(file, 0, block(b"x"))) == (True, None)
    assert (tmp_path / PATH).read_bytes()[: BLOCK_SIZE + 1] == b"x" * BLOCK_SIZE + b"\0"
    background.close()


def test_a_large_write_is_left_to_a_thread(file: RealFile, tmp_path: Path) -> None:
    background = Threads()
    assert submitted(background, DurableWrite(file, 0, block(b"x", LARGE))) == (False, None)
    assert (tmp_path / PATH).read_bytes() == b"x" * LARGE
    background.close()


def test_a_write_through_the_page_cache_is_left_to_a_thread(tmp_path: Path) -> None:
    background = Threads()
    cached = RealDisk(tmp_path).open(PATH, Access.CREATE)
    assert submitted(background, DurableWrite(cached, 0, block(b"x"))) == (False, None)
    background.close()


def test_a_write_that_fails_is_named(file: RealFile) -> None:
    background = Threads()
    file.close()
    at_once, error = submitted(background, DurableWrite(file, 0, block(b"x")))
    assert at_once
    assert isinstance(error, DiskFailed)
    assert PATH in str(error)
    background.close()


def test_a_disk_that_is_slow_is_left_to_a_thread_until_it_is_quick_again(
    file: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = Threads()

    def at_once_when_it_takes(ms: float) -> bool:
        with monkeypatch.context() as patch:
            clock = iter((0.0, ms / 1000))
            patch.setattr("onceflow.runtime.disk.perf_counter", clock.__next__)
            return submitted(background, DurableWrite(file, 0, block(b"x")))[0]

    def left_until_quick() -> int:
        left = 0
        while not at_once_when_it_takes(0.1):
            left += 1
        return left

    # A single one may have waited for a core, or for the interpreter.
    assert [at_once_when_it_takes(ms) for ms in (0.9, 2.5, 0.9, 2.5, 2.5)] == [True] * 5
    assert left_until_quick() == 32
    assert at_once_when_it_takes(20.5)  # so long it can only have been the disk
    assert [at_once_when_it_takes(20.5) for _ in range(1000)] == [False] * 1000  # as the thread saw
    assert left_until_quick() == 320
    assert at_once_when_it_takes(60_000.0)  # a disk that hung for a minute is believed again, too
    assert left_until_quick() == 4096
    background.close()


@pytest.mark.parametrize(
    ("lane", "at_once"),
    [(JobLane.BULK, False), (JobLane.GROW, False), (JobLane.COMPACT, False), (JobLane.CHECK, True)],
)
def test_a_disk_that_other_jobs_load_is_left_to_a_thread(
    file: RealFile, lane: JobLane, at_once: bool
) -> None:
    background = Threads()
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def job() -> Job:
        begun.set()
        go_on.wait()
        yield

    background.submit(lane, job(), lambda _: ended.set())
    begun.wait()
    assert submitted(background, DurableWrite(file, 0, block(b"x"))) == (at_once, None)
    go_on.set()
    background.wait(ended.is_set)
    assert submitted(background, DurableWrite(file, 0, block(b"x"))) == (True, None)
    background.close()


def test_a_store_is_opened_filled_and_closed_without_a_loop(tmp_path: Path) -> None:
    background = Threads()
    store = LogStore.open(RealDisk(tmp_path), background, RealRand(), StoreConfig())
    log_id = LogId(RealRand().uuid4(), 0)
    store.create("orders", [log_id])
    log = store.logs[log_id]
    tickets = [append(store, log, new_batch()) for _ in range(20)]
    background.wait(lambda: all(ticket.done for ticket in tickets))
    assert log.high_watermark == 20
    store.close()
    background.close()


@pytest.mark.parametrize("answers_first", [True, False])
def test_on_a_loop_answers_leave_before_the_next_group_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers_first: bool
) -> None:
    """The loop does nothing else while it writes: an answer that is ready must be gone by then."""
    order: list[str] = []
    write = RealFile.pwrite_durable

    def noted(file: RealFile, position: int, data: memoryview) -> None:
        order.append("write")
        write(file, position, data)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        background = Threads(post=loop.call_soon_threadsafe, soon=loop.call_soon)
        store = LogStore.open(RealDisk(tmp_path), background, RealRand(), StoreConfig())
        log_id = LogId(RealRand().uuid4(), 0)
        store.create("orders", [log_id])
        log = store.logs[log_id]
        await asyncio.sleep(0)
        monkeypatch.setattr(RealFile, "pwrite_durable", noted)
        ended = loop.create_future()

        def appended(name: str, then: Callable[[], None]) -> None:
            ticket = append(store, log, new_batch())
            # As a connection does it: what is ready leaves at the end of the turn.
            callbacks = [lambda: loop.call_soon(order.append, name), then]
            for callback in callbacks if answers_first else reversed(callbacks):
                ticket.add_done_callback(partial(called, callback))

        appended("first", lambda: appended("second", lambda: ended.set_result(None)))
        await ended
        await asyncio.sleep(0)
        monkeypatch.undo()
        store.close()
        background.close()

    def called(callback: Callable[[], object], error: Exception | None) -> None:
        assert error is None
        callback()

    asyncio.run(main())
    assert order == ["write", "first", "write", "second"]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_gathers_while_a_write_fails_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    background = Threads()
    store = LogStore.open(RealDisk(tmp_path), background, RealRand(), StoreConfig())
    log_id = LogId(RealRand().uuid4(), 0)
    created = store.create("orders", [log_id])
    background.wait(lambda: created.done)
    log = store.logs[log_id]
    tickets = []
    writes = 0

    def fail(file: RealFile, position: int, data: memoryview) -> None:
        nonlocal writes
        writes += 1
        if at_once:  # else the thread must not touch what is the owner's
            tickets.append(append(store, log, new_batch()))
        raise DiskFailed("no such sector")

    monkeypatch.setattr(RealFile, "pwrite_durable", fail)
    if not at_once:
        monkeypatch.setattr(DurableWrite, "is_direct", False)
    tickets.append(append(store, log, new_batch()))
    background.wait(lambda: store.failure is not None)
    background.wait(lambda: all(ticket.done for ticket in tickets))
    assert len(tickets) == 1 + at_once
    assert all(isinstance(ticket.error, StoreFailed) for ticket in tickets)
    assert writes == 1
    with pytest.raises(StoreFailed):
        append(store, log, new_batch())
    store.close()
    background.close()
    assert writes == 1


def test_a_callback_that_raises_keeps_no_group_from_being_written(tmp_path: Path) -> None:
    background = Threads()
    store = LogStore.open(RealDisk(tmp_path), background, RealRand(), StoreConfig())
    log_id = LogId(RealRand().uuid4(), 0)
    created = store.create("orders", [log_id])
    background.wait(lambda: created.done)
    log = store.logs[log_id]
    second: list[Ticket] = []

    def append_and_raise(error: Exception | None) -> None:
        second.append(append(store, log, new_batch()))
        raise ZeroDivisionError

    append(store, log, new_batch()).add_done_callback(append_and_raise)
    with pytest.raises(ZeroDivisionError):
        background.wait(lambda: bool(second))
    background.wait(lambda: second[0].done)
    assert log.high_watermark == 2
    store.close()
    background.close()
