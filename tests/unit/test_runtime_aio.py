"""Durable writes without a thread: real files, the real kernel."""

from __future__ import annotations

import asyncio
import mmap
from pathlib import Path

import pytest

from onceflow.errors import DiskFailed, InvariantViolated
from onceflow.log.store import LogStore, StoreConfig
from onceflow.runtime.aio import Aio
from onceflow.runtime.background import Lane, Threads
from onceflow.runtime.disk import BLOCK_SIZE, Access, DurableWrite, RealDisk, RealFile
from onceflow.runtime.rand import RealRand
from onceflow.types import LogId
from tests.unit.log_helpers import append, new_batch

PATH = "written"


@pytest.fixture
def aio() -> Aio:
    opened = Aio.open()
    if opened is None:
        pytest.skip("this system has no asynchronous I/O to give")
    return opened


def direct_file(directory: Path) -> RealFile:
    disk = RealDisk(directory)
    disk.open(PATH, Access.CREATE).pwrite(0, bytes(4 * BLOCK_SIZE))
    file = disk.open(PATH, Access.DIRECT)
    if not file.is_direct:
        pytest.skip("this file system has no direct I/O")
    return file


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


def block(letter: bytes) -> memoryview:
    memory = mmap.mmap(-1, BLOCK_SIZE)
    memory[:] = letter * BLOCK_SIZE
    return memoryview(memory)


def test_a_write_ends_later_and_is_there(aio: Aio, tmp_path: Path) -> None:
    file = direct_file(tmp_path)
    outcomes: list[Exception | None] = []
    aio.submit(DurableWrite(file, BLOCK_SIZE, block(b"x")), outcomes.append)
    assert not outcomes
    aio.collect(wait=True)
    assert outcomes == [None]
    assert not aio.is_busy
    content = (tmp_path / PATH).read_bytes()
    assert content == bytes(BLOCK_SIZE) + b"x" * BLOCK_SIZE + bytes(2 * BLOCK_SIZE)
    aio.close()


def test_one_write_at_a_time(aio: Aio, tmp_path: Path) -> None:
    file = direct_file(tmp_path)
    aio.submit(DurableWrite(file, 0, block(b"a")), lambda _: None)
    with pytest.raises(InvariantViolated, match="one-direct-write"):
        aio.submit(DurableWrite(file, 0, block(b"b")), lambda _: None)
    aio.close()


def test_a_write_that_fails_is_named(aio: Aio, tmp_path: Path) -> None:
    file = direct_file(tmp_path)
    write = DurableWrite(file, 0, block(b"x"))
    file.close()  # so that the kernel refuses to begin
    outcomes: list[Exception | None] = []
    aio.submit(write, outcomes.append)
    aio.collect(wait=True)
    (error,) = outcomes
    assert isinstance(error, DiskFailed)
    assert PATH in str(error)
    aio.close()


def test_nothing_is_collected_before_it_ended(aio: Aio) -> None:
    aio.collect()
    assert not aio.is_busy
    aio.close()


def test_files_in_the_page_cache_are_left_to_threads(tmp_path: Path) -> None:
    file = RealDisk(tmp_path).open(PATH, Access.CREATE)
    assert not Aio.takes(DurableWrite(file, 0, block(b"x")))


def test_a_store_is_opened_filled_and_closed_without_a_loop(aio: Aio, tmp_path: Path) -> None:
    background = Threads(aio=aio)
    store = LogStore.open(RealDisk(tmp_path), background, RealRand(), StoreConfig())
    log_id = LogId(RealRand().uuid4(), 0)
    store.create("orders", [log_id])
    log = store.logs[log_id]
    tickets = [append(store, log, new_batch()) for _ in range(20)]
    background.wait(lambda: all(ticket.done for ticket in tickets))
    assert log.high_watermark == 20
    store.close()
    background.close()


def test_completions_arrive_on_the_loop(aio: Aio, tmp_path: Path) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        background = Threads(post=loop.call_soon_threadsafe, soon=loop.call_soon, aio=aio)
        loop.add_reader(aio.fileno(), background.serve)
        store = LogStore.open(RealDisk(tmp_path), background, RealRand(), StoreConfig())
        log_id = LogId(RealRand().uuid4(), 0)
        store.create("orders", [log_id])
        log = store.logs[log_id]
        for _ in range(50):
            durable = loop.create_future()
            ticket = append(store, log, new_batch())
            ticket.add_done_callback(durable.set_result)
            assert await durable is None
        loop.remove_reader(aio.fileno())
        store.close()
        background.close()
        return log.high_watermark

    assert asyncio.run(main()) == 50
    again = Threads()
    store = LogStore.open(RealDisk(tmp_path), again, RealRand(), StoreConfig())
    assert [log.high_watermark for log in store.logs.values()] == [50]
    assert store.report.clean
    store.close()
    again.close()


def test_a_write_of_one_who_is_alone_is_waited_for(aio: Aio, tmp_path: Path) -> None:
    file = direct_file(tmp_path)
    background = Threads(aio=aio)
    outcomes: list[Exception | None] = []
    write = DurableWrite(file, 0, block(b"x"), is_alone=True)
    background.submit(Lane.JOURNAL, write, outcomes.append)
    assert outcomes == [None]
    assert (tmp_path / PATH).read_bytes() == b"x" * BLOCK_SIZE + bytes(3 * BLOCK_SIZE)
    file.close()
    again = DurableWrite(file, 0, block(b"y"), is_alone=True)
    background.submit(Lane.JOURNAL, again, outcomes.append)
    background.wait(lambda: len(outcomes) == 2)  # not waited for, if the first one was slow
    assert isinstance(outcomes[-1], DiskFailed)
    background.close()


def test_a_disk_that_was_slow_is_not_waited_for(
    aio: Aio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = direct_file(tmp_path)
    background = Threads(aio=aio)

    def is_waited_for(*clock: float) -> bool:
        outcomes: list[Exception | None] = []
        with monkeypatch.context() as patch:
            patch.setattr("onceflow.runtime.background.perf_counter", iter(clock).__next__)
            write = DurableWrite(file, 0, block(b"x"), is_alone=True)
            background.submit(Lane.JOURNAL, write, outcomes.append)
        waited_for = bool(outcomes)
        background.wait(lambda: bool(outcomes))
        return waited_for

    assert is_waited_for(0.0, 0.0009)
    assert is_waited_for(0.0, 0.0025)  # too slow, by two of the times that are allowed
    after = [is_waited_for(0.0, 0.0) for _ in range(33)]
    assert after == [False] * 31 + [True] * 2
    background.close()


def test_no_descriptor_is_left_over(tmp_path: Path) -> None:
    before = open_files()
    for _ in range(5):
        opened = Aio.open()
        if opened is not None:
            opened.close()
    # What other tests left to the garbage collector may close meanwhile, so no number is compared.
    assert open_files() <= before
