"""`onceflow consume`: the records of a topic, from a place on.

With a group, reading goes on where the group has committed, and what has been written out is
committed: a record may be printed twice after a crash, never skipped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from onceflow.cli.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, TopicName
from onceflow.cli.output import Bar, note, progress_bar, warn
from onceflow.cli.record_format import (
    DEFAULT_FORMAT,
    Render,
    format_renderer,
    json_renderer,
    records_of,
)
from onceflow.cli.values import Place, Position, parse_position

if TYPE_CHECKING:
    from onceflow.cli.session import Session
    from onceflow.client.model import OffsetRange, TopicPartition
    from onceflow.client.simple_consumer import Fetched, SimpleConsumer

POLL_SECONDS: Final = 0.5
COMMIT_SECONDS: Final = 5.0


Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="earliest, latest, an offset, or a time (2025-03-01T12:00:00Z, or @ and "
        "milliseconds). With --group, only where the group has committed nothing.",
    ),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", metavar="N", min=0, help="Only this one. Repeatable."),
]
Most = Annotated[
    int | None,
    typer.Option("--max", "-n", metavar="N", min=1, help="Stop after so many records."),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="GROUP", help="Go on where this group is; commit what was read."
    ),
]
Follow = Annotated[
    bool, typer.Option("--follow/--exit-at-end", "-f/-e", help="Wait for more, or end.")
]
Template = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="TEXT",
        help=r"Such as '{offset}\t{key}\t{value}'; also {topic}, {partition}, {timestamp} "
        "(milliseconds), {time}, {headers}.",
    ),
]


def consume(
    topic: TopicName,
    start: Start = "earliest",
    partition: Partitions = None,
    most: Most = None,
    group: Group = None,
    follow: Follow = True,
    template: Template = DEFAULT_FORMAT,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print the records of a topic, one line each, and wait for more until Ctrl-C.

    JSON lines hold topic, partition, offset, timestamp, key, value and headers; bytes that are not
    UTF-8 become {"base64": "..."}.
    """
    from onceflow.cli.session import connected
    from onceflow.client.simple_consumer import SimpleConsumer

    position = parse_position(start)
    render = json_renderer if as_json else format_renderer(template)
    with connected(bootstrap) as session:
        ranges = _ranges(session, topic, partition or [])
        starts = _starts(session, ranges, position, group)
        consumer = SimpleConsumer(session.cluster, starts)
        ends = None if follow else {each: held.latest for each, held in ranges.items()}
        total = sum(max(0, ends[each] - starts[each]) for each in starts) if ends else None
        if total is not None and most is not None:
            total = min(total, most)
        with progress_bar("reading", total, prints=True) as bar:
            _Reading(session, consumer, render, group, bar).run(ends, most)


def _ranges(session: Session, topic: str, numbers: list[int]) -> dict[TopicPartition, OffsetRange]:
    from onceflow.client import admin
    from onceflow.client.model import TopicPartition

    found = session.run(session.cluster.find_topic(topic))
    chosen = numbers or [each.partition for each in found.partitions]
    partitions = [TopicPartition(topic, number) for number in chosen]
    return session.run(admin.offset_ranges(session.cluster, partitions))


def _starts(
    session: Session,
    ranges: dict[TopicPartition, OffsetRange],
    position: Position,
    group: str | None,
) -> dict[TopicPartition, int]:
    from onceflow.cli.positions import resolve
    from onceflow.client import admin

    starts = session.run(resolve(session.cluster, ranges, position))
    if position.place is Place.OFFSET:
        for partition, offset in starts.items():
            if offset != position.number:
                held = ranges[partition]
                warn(
                    f"{partition} holds the offsets from {held.earliest} up to {held.latest}; "
                    f"reading it from {offset}"
                )
    if group is not None:
        session.run(admin.require_empty(session.cluster, group))
        committed = session.run(admin.committed_offsets(session.cluster, group))
        starts |= {each: offset for each, offset in committed.items() if each in starts}
    return starts


class _Reading:
    """One run of the command: what was written out so far, and what the group was told."""

    def __init__(
        self,
        session: Session,
        consumer: SimpleConsumer,
        render: Render,
        group: str | None,
        bar: Bar,
    ) -> None:
        self._session = session
        self._consumer = consumer
        self._render = render
        self._group = group
        self._bar = bar
        self._written = 0
        self._uncommitted: dict[TopicPartition, int] = {}
        self._committed_at = time.monotonic()

    def run(self, ends: dict[TopicPartition, int] | None, most: int | None) -> None:
        """Until `most` records are written, or all partitions are at their ends."""
        try:
            has_told = ends is not None
            while self._drop_finished(ends) and (most is None or self._written < most):
                fetched = self._session.run(self._consumer.poll(POLL_SECONDS))
                for each in fetched:
                    self._write(each, ends, most)
                if time.monotonic() > self._committed_at + COMMIT_SECONDS:
                    self._commit()
                if not fetched and not has_told:
                    note("End of the topic; waiting for more. Ctrl-C stops.")
                    has_told = True
        finally:
            self._commit()

    def _drop_finished(self, ends: dict[TopicPartition, int] | None) -> bool:
        """Whether there is anything left to read."""
        if ends is not None:
            for partition, offset in list(self._consumer.positions.items()):
                if offset >= ends[partition]:
                    del self._consumer.positions[partition]
        return bool(self._consumer.positions)

    def _write(
        self, fetched: Fetched, ends: dict[TopicPartition, int] | None, most: int | None
    ) -> None:
        end = ends[fetched.partition] if ends is not None else None
        written, next_offset = 0, None
        for line, offset in self._lines(fetched):
            if (end is not None and offset >= end) or (
                most is not None and self._written + written >= most
            ):
                break
            sys.stdout.buffer.write(line)
            written, next_offset = written + 1, offset + 1
        sys.stdout.buffer.flush()
        self._written += written
        self._bar.advance(written)
        if next_offset is not None:
            self._uncommitted[fetched.partition] = next_offset

    def _lines(self, fetched: Fetched) -> Iterator[tuple[bytes, int]]:
        for record in records_of(*fetched.partition, fetched.records):
            yield self._render(record), record.offset

    def _commit(self) -> None:
        from onceflow.client import admin

        self._committed_at = time.monotonic()
        if self._group is None or not self._uncommitted:
            return
        offsets, self._uncommitted = self._uncommitted, {}
        self._session.run(admin.commit_offsets(self._session.cluster, self._group, offsets))
