"""`onceflow demo`: kills a writing process again and again and shows that nothing is lost.

A child process appends to four partitions; each batch that it reports as durable is noted here.
In the middle of that the child is killed with SIGKILL, the logs are recovered, and every noted
batch must be there, byte for byte, at the offset that was acknowledged.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from onceflow.cli.demo_writer import log_ids
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import StoredBatch, iter_stored
from onceflow.records.columns import decode
from onceflow.runtime.background import Inline
from onceflow.runtime.clock import RealClock
from onceflow.runtime.disk import RealDisk
from onceflow.runtime.rand import RealRand

READ_BYTES = 1 << 20

Acked = dict[tuple[int, int], int]
"""(partition, base offset) to the CRC of the batch that was acknowledged there."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one kill left."""

    acked: int
    found: int
    lost: int
    records: int
    replayed: int
    recovery_ms: float


def demo(
    kills: Annotated[int, typer.Option(min=1, max=100, help="How often to kill the writer.")] = 5,
    batches: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Acknowledged batches before each kill.")
    ] = 2000,
    directory: Annotated[
        Path | None, typer.Option(help="Keep the data here; else it is temporary.")
    ] = None,
) -> None:
    """Kills a writing process in the middle of its work and shows that nothing is lost."""
    console = Console()
    console.print(
        "A process appends payments to [bold]4 partitions[/]; every batch it reports is on the "
        "disk.\nIt is killed with [bold]SIGKILL[/] while it writes. What it had reported must be "
        "there, byte for byte.\n"
    )
    with tempfile.TemporaryDirectory(prefix="onceflow-demo-") as scratch:
        data = directory or Path(scratch)
        rounds = list(_rounds(console, data, kills, batches))
    console.print(_table(rounds))
    lost = sum(each.lost for each in rounds)
    if lost:
        console.print(f"[bold red]{lost} acknowledged batches were lost[/]")
        raise typer.Exit(1)
    console.print(
        f"[bold green]Nothing lost:[/] {rounds[-1].acked:,} acknowledged batches "
        f"({rounds[-1].records:,} records) survived {kills} kills."
    )


def _rounds(console: Console, data: Path, kills: int, batches: int) -> Iterator[Round]:
    acked: Acked = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress:
        for number in range(kills):
            task = progress.add_task(f"writing, then kill {number + 1}", total=batches)
            for partition, offset, crc in _write_and_kill(data, batches):
                acked[partition, offset] = crc
                progress.advance(task)
            yield _recover(data, acked)


def _write_and_kill(data: Path, batches: int) -> Iterator[tuple[int, int, int]]:
    """What the writer reported up to its death: some more than `batches`."""
    command = [sys.executable, "-m", "onceflow", "demo-writer", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        if writer.stdout is None:
            raise typer.Exit(1)
        for count, line in enumerate(writer.stdout):
            if count == batches:
                writer.kill()
            if line.endswith("\n"):  # the last line may have been cut off by the kill
                partition, offset, crc = map(int, line.split())
                yield partition, offset, crc


def _recover(data: Path, acked: Acked) -> Round:
    clock = RealClock()
    started = clock.monotonic()
    store = LogStore.open(RealDisk(data), Inline(), RealRand(), StoreConfig())
    recovery_ms = (clock.monotonic() - started) * 1000
    found: Acked = {}
    records = 0
    for log_id in log_ids():
        for batch in _batches(store.logs[log_id]):
            found[log_id.partition, batch.header.base_offset] = batch.header.crc
            records += decode([batch]).num_rows
    lost = sum(found.get(place) != crc for place, crc in acked.items())
    replayed = store.report.entries
    store.close()
    return Round(len(acked), len(found), lost, records, replayed, recovery_ms)


def _batches(log: PartitionLog) -> Iterator[StoredBatch]:
    offset = log.start_offset
    while offset < log.high_watermark:
        for batch in iter_stored(log.read(offset, READ_BYTES).read(), expected_base_offset=offset):
            offset = batch.header.next_offset
            yield batch


def _table(rounds: list[Round]) -> Table:
    table = Table(title="After each kill")
    for name in (
        "kill",
        "acknowledged batches",
        "found",
        "lost",
        "replayed from the journal",
        "recovery",
    ):
        table.add_column(name, justify="right")
    for number, each in enumerate(rounds, 1):
        table.add_row(
            str(number),
            f"{each.acked:,}",
            f"{each.found:,}",
            f"[green]{each.lost}[/]" if not each.lost else f"[bold red]{each.lost}[/]",
            f"{each.replayed:,} entries",
            f"{each.recovery_ms:.0f} ms",
        )
    return table
