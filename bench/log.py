"""What the log costs, as ratios: to syncing each append, to a small log, to one partition.

    python -m bench.log [--gigabytes 10]

Four questions, each answered by interleaved rounds in one run, median and spread; raw numbers go to
bench/results/log.json.
- The journal against the plain way (append to the partition's file, then fdatasync), same bytes,
  four partitions, one and many appends waiting at a time.
- Append and read at the tail of a log of 10 GB, against one of 10 MB.
- Start after a clean stop with 200 partitions, against one.
- Recovery after a kill: seconds per GiB that has to be replayed or verified.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

from onceflow.log.checkpoint import Durability
from onceflow.log.config import LogConfig
from onceflow.log.journal.journal import Ticket
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import HEADER_SIZE, NewBatch, iter_stored, seal
from onceflow.runtime.background import Threads
from onceflow.runtime.disk import RealDisk
from onceflow.runtime.rand import RealRand
from onceflow.types import LogId

SCRATCH = Path(__file__).resolve().parents[1] / ".cache"
ROUNDS = 5
BATCH_BYTES = 64 << 10
PARTITIONS = 4
APPENDS = 1500
MB = 1 << 20

Samples = dict[str, list[float]]


def make_batch(size: int) -> bytes:
    records = 60
    batch = seal(
        bytearray(HEADER_SIZE) + os.urandom(size - HEADER_SIZE),
        attributes=0,
        last_offset_delta=records - 1,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=records,
    )
    return bytes(batch.buffer)


class Opened:
    """A store on a real directory with its threads; closed by `close` or left by `abandon`."""

    def __init__(self, root: Path, durability: Durability = Durability.FSYNC) -> None:
        self.background = Threads()
        config = StoreConfig(durability=durability, log=LogConfig(retention_ms=-1))
        self.store = LogStore.open(RealDisk(root), self.background, RealRand(), config)

    def logs(self, count: int) -> list[PartitionLog]:
        ids = [LogId(UUID(int=1), number) for number in range(count)]
        missing = [log_id for log_id in ids if log_id not in self.store.logs]
        self.wait(self.store.create("bench", missing))
        return [self.store.logs[log_id] for log_id in ids]

    def append(self, log: PartitionLog, data: bytes) -> Ticket:
        batch = NewBatch.parse(bytearray(data))
        return self.store.append(log, batch.assign(log.end_offset, 0))

    def wait(self, ticket: Ticket) -> None:
        self.background.wait(lambda: ticket.done)

    def append_all(self, logs: list[PartitionLog], data: bytes, count: int, waiting: int) -> None:
        """`count` appends, `waiting` of them under way at a time."""
        tickets: list[Ticket] = []
        for number in range(count):
            tickets.append(self.append(logs[number % len(logs)], data))
            if len(tickets) >= waiting:
                self.wait(tickets.pop(0))
        for ticket in tickets:
            self.wait(ticket)

    def close(self) -> None:
        self.store.close()
        self.background.close()


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def plain_way(root: Path, data: bytes, count: int) -> None:
    """What a log without a journal does: each append is synced in its own file."""
    root.mkdir()
    files = [os.open(root / f"{n}.log", os.O_RDWR | os.O_CREAT) for n in range(PARTITIONS)]
    for number in range(count):
        file = files[number % PARTITIONS]
        os.write(file, data)
        os.fdatasync(file)
    for file in files:
        os.close(file)


def against_plain_sync(scratch: Path) -> Samples:
    """Seconds for the same appends, each way."""
    root = scratch / "sync"
    batches = {"1 KiB": make_batch(1 << 10), "64 KiB": make_batch(BATCH_BYTES)}
    samples: Samples = {}
    for _ in range(ROUNDS):
        for name, data in batches.items():
            seconds = timed(partial(plain_way, root, data, APPENDS))
            samples.setdefault(f"{name}, fdatasync each", []).append(seconds)
            shutil.rmtree(root)
        for waiting in (1, 20):
            for name, data in batches.items():
                opened = Opened(root)
                logs = opened.logs(PARTITIONS)
                seconds = timed(partial(opened.append_all, logs, data, APPENDS, waiting))
                samples.setdefault(f"{name}, journal, {waiting} waiting", []).append(seconds)
                opened.close()
                shutil.rmtree(root)
    return samples


def grow(root: Path, size: int) -> None:
    """A log of so many bytes, made the quick way and synced by the stop."""
    opened = Opened(root, Durability.OS)
    data = make_batch(MB)
    opened.append_all(opened.logs(1), data, size // MB, 1)
    opened.close()


def at_the_tail(scratch: Path, gigabytes: float) -> Samples:
    """Microseconds of an append and of a read at the end of a small and of a large log."""
    sizes = {"10 MB": 10 * MB, f"{gigabytes:g} GB": int(gigabytes * 1024) * MB}
    for name, size in sizes.items():
        grow(scratch / name, size)
    stores = {name: Opened(scratch / name) for name in sizes}
    data = make_batch(4096)
    samples: Samples = {}
    for _ in range(ROUNDS):
        for name, opened in stores.items():
            (log,) = opened.logs(1)
            count = 300
            seconds = timed(partial(opened.append_all, [log], data, count, 10))
            samples.setdefault(f"append, {name}", []).append(seconds / count * 1e6)
            seconds = timed(partial(read_tail, log, count))
            samples.setdefault(f"read, {name}", []).append(seconds / count * 1e6)
    for name, opened in stores.items():
        opened.close()
        shutil.rmtree(scratch / name)
    return samples


def read_tail(log: PartitionLog, count: int) -> None:
    offset = log.high_watermark - 60 * count
    for _ in range(count):
        (batch,) = iter_stored(log.read(offset, 1).read())
        offset = batch.header.next_offset


def starts(scratch: Path) -> Samples:
    """Milliseconds to open the store after a clean stop."""
    samples: Samples = {}
    for count in (1, 200):
        opened = Opened(scratch / f"start-{count}")
        opened.append_all(opened.logs(count), make_batch(4096), 5 * count, 20)
        opened.close()
    for _ in range(ROUNDS):
        for count in (1, 200):
            root = scratch / f"start-{count}"
            start = time.perf_counter()
            opened = Opened(root)
            seconds = time.perf_counter() - start
            samples.setdefault(f"start, {count} partitions", []).append(seconds * 1000)
            opened.close()
    return samples


def recoveries(scratch: Path) -> Samples:
    """Seconds per GiB of log that a start after a kill has to verify and replay."""
    samples: Samples = {}
    for size in (1 << 10, BATCH_BYTES):
        for number in range(3):
            root = scratch / f"recovery-{size}-{number}"
            bytes_in_all = (64 if size < BATCH_BYTES else 512) * MB
            if (pid := os.fork()) == 0:
                opened = Opened(root)
                opened.append_all(
                    opened.logs(PARTITIONS), make_batch(size), bytes_in_all // size, 50
                )
                os._exit(0)  # no stop: as after a kill
            os.waitpid(pid, 0)
            start = time.perf_counter()
            opened = Opened(root)
            seconds = (time.perf_counter() - start) / (bytes_in_all / (1 << 30))
            samples.setdefault(f"recovery, {size >> 10} KiB batches", []).append(seconds)
            opened.close()
            shutil.rmtree(root)
    return samples


def show(title: str, samples: Samples, unit: str, baselines: int) -> None:
    """Lines and, behind the first `baselines` of them, ratios: line i to line i mod baselines."""
    print(f"\n{title}")
    names = list(samples)
    for index, (name, values) in enumerate(samples.items()):
        middle = statistics.median(values)
        line = f"  {name:28} {middle:9.3f} {unit} ({min(values):.3f} to {max(values):.3f})"
        if index >= baselines:
            base = names[index % baselines]
            ratio = middle / statistics.median(samples[base])
            line += f"   {ratio:.2f} times as long as {base}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the log costs.")
    parser.add_argument("--gigabytes", type=float, default=10)
    arguments = parser.parse_args()
    results: dict[str, Samples] = {}
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=SCRATCH) as scratch:
        place = Path(scratch)
        results["sync"] = against_plain_sync(place)
        show(f"{APPENDS} appends to {PARTITIONS} partitions, each durable", results["sync"], "s", 2)
        results["tail"] = at_the_tail(place, arguments.gigabytes)
        show("At the tail of a log, 4 KiB batches", results["tail"], "us", 2)
        results["start"] = starts(place)
        show("Start after a clean stop", results["start"], "ms", 1)
        results["recovery"] = recoveries(place)
        show("Start after a kill, for each GiB", results["recovery"], "s", 2)
    target = Path(__file__).parent / "results" / "log.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
