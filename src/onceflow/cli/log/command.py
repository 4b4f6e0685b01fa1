"""`onceflow log`: what is in the files of a broker, ours or Apache Kafka's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceflow.cli.common import APP_SETTINGS, Bar, counted, print_text, progress_bar, time_text
from onceflow.cli.consume import json_fields

if TYPE_CHECKING:
    from onceflow.cli.log.segment_files import SegmentFile
    from onceflow.records import StoredBatch

app = typer.Typer(help="Inspect the files of a broker.", no_args_is_help=True, **APP_SETTINGS)

_COLUMNS = "{:>12}  {:>12}  {:>12}  {:>8}  {:>9}  {:<6}  {:<24}  {}"


@app.callback()
def group() -> None:
    """Inspect the files of a broker."""


@app.command("dump")
def dump(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A segment (.log), a partition's directory or a data directory."
        ),
    ],
    records: Annotated[bool, typer.Option("--records", help="Print the records too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A line of JSON for each batch and each file.")
    ] = False,
) -> None:
    """Print the batches in log files and verify every checksum.

    Nothing is changed, and the broker may be running. The command says where a file is
    damaged, goes on with the others, and ends with 1.
    """
    from onceflow.cli.log.segment_files import find_segments

    segments = find_segments(path)
    damaged = 0
    total = sum(each.path.stat().st_size for each in segments)
    with progress_bar("reading", total, in_bytes=True, prints=True) as bar:
        for number, segment in enumerate(segments):
            if number and not as_json:
                print_text("")
            damaged += _dump(segment, records, as_json, bar)
    if damaged:
        raise typer.Exit(1)


def _dump(segment: SegmentFile, with_records: bool, as_json: bool, bar: Bar) -> bool:
    """Prints one file; whether it is damaged."""
    from onceflow.cli.log.segment_files import Problem, SegmentWalk
    from onceflow.errors import RecordError

    walk = SegmentWalk(segment)
    facts = {"batches": 0, "records": 0, "bytes": 0}
    problem: Problem | None = None
    if not as_json:
        print_text(typer.style(str(segment.path), bold=True))
    for position, batch in walk:
        try:
            _show(segment, position, batch, with_records, as_json, is_first=not facts["batches"])
        except RecordError as error:
            problem = Problem(position, str(error), is_damage=True)
            break
        facts["batches"] += 1
        facts["records"] += batch.header.record_count
        facts["bytes"] += batch.header.size
        bar.advance(batch.header.size)
    problem = problem or walk.problem
    _show_end(segment, facts, problem, as_json)
    return problem is not None and problem.is_damage


def _show(
    segment: SegmentFile,
    position: int,
    batch: StoredBatch,
    with_records: bool,
    as_json: bool,
    *,
    is_first: bool,
) -> None:
    rows = _rows(batch) if with_records else []
    kind = _kind(batch)
    if as_json:
        document: dict[str, Any] = {"type": "batch", "file": str(segment.path)}
        document |= {"position": position, **_fields(batch), "kind": kind}
        if with_records:
            document["records"] = rows
        print_text(json.dumps(document, ensure_ascii=False))
        return
    if is_first:
        print_text(
            _COLUMNS.format(
                "POSITION", "FIRST", "LAST", "RECORDS", "BYTES", "CODEC", "LATEST TIME", "PRODUCER"
            )
        )
    header = batch.header
    producer = ""
    if header.producer_id >= 0:
        producer = f"{header.producer_id} epoch {header.producer_epoch}"
        if header.base_sequence >= 0:
            producer += f" sequence {header.base_sequence}"
    print_text(
        _COLUMNS.format(
            position,
            header.base_offset,
            header.last_offset,
            header.record_count,
            header.size,
            header.codec.name.lower(),
            time_text(header.max_timestamp),
            " ".join(word for word in (producer, "" if kind == "data" else kind) if word),
        ).rstrip()
    )
    for row in rows:
        print_text(_record_text(row))


def _fields(batch: StoredBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "bytes": header.size,
        "codec": header.codec.name.lower(),
        "timestamp_type": header.timestamp_type.name.lower(),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "crc": header.crc,
    }


def _kind(batch: StoredBatch) -> str:
    """What a batch is for: data, data of a transaction, or a marker."""
    from onceflow.records import parse_marker

    if not batch.header.is_control:
        return "transactional" if batch.header.is_transactional else "data"
    if not batch.header.is_transactional:
        return "control"
    marker = parse_marker(batch)
    return f"{marker.type.name.lower()} marker" if marker else "control"


def _rows(batch: StoredBatch) -> list[dict[str, Any]]:
    from onceflow.client import columns_of, records_of
    from onceflow.types import TopicPartition

    columns = columns_of(TopicPartition("", 0), [batch], batch.header.base_offset)
    return [json_fields(record) for record in records_of([columns])]


def _record_text(row: dict[str, Any]) -> str:
    parts = [f"{row['offset']:>26}  {time_text(row['timestamp'])}"]
    for name in ("key", "value"):
        parts.append(f"{name}={json.dumps(row[name], ensure_ascii=False)}")
    if row["headers"]:
        parts.append(f"headers={json.dumps(row['headers'], ensure_ascii=False)}")
    return "  ".join(parts)


def _show_end(segment: SegmentFile, facts: dict[str, int], problem: Any, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {"type": "file", "file": str(segment.path), **facts}
        document["problem"] = None
        if problem is not None:
            document["problem"] = {
                "position": problem.position,
                "reason": problem.reason,
                "damage": problem.is_damage,
            }
        print_text(json.dumps(document, ensure_ascii=False))
        return
    names = {"batches": "batch", "records": "record", "bytes": "byte"}
    print_text(", ".join(counted(facts[each], name) for each, name in names.items()))
    if problem is not None:
        word = typer.style("damaged", fg="red", bold=True) if problem.is_damage else "unfinished"
        print_text(f"{word} at byte {problem.position}: {problem.reason}")
