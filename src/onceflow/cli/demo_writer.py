"""The process that `onceflow demo` kills: appends as fast as it can and says what is durable.

For every acknowledged batch it writes one line to standard output, `partition base_offset crc`,
after the batch's ticket has completed and not before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated
from uuid import UUID

import pyarrow as pa
import typer

from onceflow.log.journal import Ticket
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import StoredBatch
from onceflow.records.columns import encode
from onceflow.runtime.background import Threads
from onceflow.runtime.clock import RealClock
from onceflow.runtime.disk import RealDisk
from onceflow.runtime.rand import RealRand
from onceflow.types import LogId

TOPIC = "demo"
PARTITIONS = 4
ROWS = 50
IN_FLIGHT = 8


def log_ids() -> list[LogId]:
    return [LogId(UUID(int=1), partition) for partition in range(PARTITIONS)]


def demo_writer(directory: Annotated[Path, typer.Argument(help="The data directory.")]) -> None:
    """Appends to the logs in a directory until it is killed."""
    background = Threads()
    store = LogStore.open(RealDisk(directory), background, RealRand(), StoreConfig())
    missing = [log_id for log_id in log_ids() if log_id not in store.logs]
    if missing:
        ticket = store.create(TOPIC, missing)
        background.wait(lambda: ticket.done)
    tickets: list[Ticket] = []
    for log, batch in _work([store.logs[log_id] for log_id in log_ids()]):
        ticket = store.append(log, batch)
        header = batch.header
        line = f"{log.log_id.partition} {header.base_offset} {header.crc}\n"
        ticket.add_done_callback(partial(_say, line))
        tickets.append(ticket)
        if len(tickets) == IN_FLIGHT:
            background.wait(partial(_is_done, tickets.pop(0)))


def _is_done(ticket: Ticket) -> bool:
    return ticket.done


def _work(logs: list[PartitionLog]) -> Iterator[tuple[PartitionLog, StoredBatch]]:
    number = 0
    clock = RealClock()
    while True:
        log = logs[number % len(logs)]
        rows = range(log.end_offset, log.end_offset + ROWS)
        columns = pa.record_batch(
            {
                "key": pa.array([b"%d" % (row % 17) for row in rows], pa.binary()),
                "value": pa.array([b'{"payment": %d, "cents": 4200}' % row for row in rows]),
            }
        )
        yield log, encode(columns, now_ms=clock.wall_ms()).assign(log.end_offset, 0)
        number += 1


def _say(line: str, error: Exception | None) -> None:
    if error is not None:
        raise error
    sys.stdout.write(line)
    sys.stdout.flush()
