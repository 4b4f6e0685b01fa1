"""`onceflow consume`: the records of a topic, from a place on.

Only what was committed is shown, unless told otherwise. With a group, the topic is shared with its
other members, reading goes on where the group has committed, and what has been written out is
committed: a record may be printed twice after a crash, never skipped.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from onceflow.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ClientSettings,
    Place,
    Position,
    TopicName,
    counted,
    parse_position,
    progress_bar,
    require_stdout,
    warn,
)
from onceflow.cli.consume.record_format import DEFAULT_FORMAT, format_renderer, json_renderer

if TYPE_CHECKING:
    from onceflow.cli.common import Session
    from onceflow.client import OffsetRange
    from onceflow.types import TopicPartition


class Isolation(Enum):
    """As Kafka names them."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


Start = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="earliest, latest, an offset, or a time (2025-03-01T12:00:00Z, or @ and "
        "milliseconds). With --group it counts where the group has no committed offset.",
    ),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition", "-p", metavar="N", min=0, help="Read only this partition. Repeatable."
    ),
]
Most = Annotated[
    int | None,
    typer.Option("--max", "-n", metavar="N", min=1, help="Stop after this many records."),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="Join this consumer group: start at its offsets, and commit what was printed.",
    ),
]
IsolationLevel = Annotated[
    Isolation,
    typer.Option(
        "--isolation",
        help="Only committed records, or also those of open and aborted transactions.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow/--exit-at-end", "-f/-e", help="At the end wait for more records, or exit."
    ),
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
    isolation: IsolationLevel = Isolation.READ_COMMITTED,
    follow: Follow = True,
    template: Template = DEFAULT_FORMAT,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: AsJson = False,
) -> None:
    """Print the records of a topic, one line each, and wait for more until Ctrl-C.

    JSON lines hold topic, partition, offset, timestamp, key, value and headers; bytes that are not
    UTF-8 become {"base64": "..."}.
    """
    from onceflow.blocking import Consumer
    from onceflow.cli.common import all_settings, connected_by
    from onceflow.cli.consume.reading import Bounds, Reading
    from onceflow.client import ConsumerSettings
    from onceflow.client.admin import admin

    require_stdout()
    position = parse_position(start)
    render = json_renderer if as_json else format_renderer(template)
    given = all_settings(bootstrap, settings, _chosen(isolation, group))
    made = ConsumerSettings.of(given)
    with connected_by(made) as session:
        ranges = _ranges(session, topic, partition or [], read_committed=made.read_committed)
        if group is not None and partition:
            session.run(admin.require_empty(session.cluster, group))
        starts = _starts(session, ranges, position, warns=group is None, as_json=as_json)
        ends = None if follow else {each: held.latest for each, held in ranges.items()}
        hidden = _open_behind(session, ends) if ends is not None and made.read_committed else []
    bounds = Bounds(starts, ends, most)
    with (
        Consumer(settings=given) as consumer,
        progress_bar("reading", None if group else bounds.total, prints=True) as bar,
    ):
        reading = Reading(consumer, render, group, bounds, bar, as_json=as_json)
        if group is not None and not partition:
            reading.share(topic)
        else:
            reading.take(list(starts))
        reading.run()
    if hidden:
        _tell_what_is_open(hidden, as_json)


def _chosen(isolation: Isolation, group: str | None) -> dict[str, object]:
    """Where reading begins and what is committed is for this command to say."""
    from onceflow.client import NONE

    chosen = {"isolation.level": isolation.value, "auto.offset.reset": NONE}
    member = {} if group is None else {"group.id": group}
    return {**chosen, "enable.auto.commit": False, **member}


def _ranges(
    session: Session, topic: str, numbers: list[int], *, read_committed: bool
) -> dict[TopicPartition, OffsetRange]:
    from onceflow.cli.common import partitions_of
    from onceflow.client.admin import admin

    partitions = session.run(partitions_of(session.cluster, [(topic, numbers)]))
    return session.run(
        admin.offset_ranges(session.cluster, partitions, read_committed=read_committed)
    )


def _starts(
    session: Session,
    ranges: dict[TopicPartition, OffsetRange],
    position: Position,
    *,
    warns: bool,
    as_json: bool,
) -> dict[TopicPartition, int]:
    from onceflow.cli.common import resolve

    starts = session.run(resolve(session.cluster, ranges, position))
    for partition, offset in starts.items():
        if warns and position.place is Place.OFFSET and offset != position.number:
            held = ranges[partition]
            warn(
                f"{partition} holds the offsets from {held.earliest} up to {held.latest}; "
                f"reading it from {offset}",
                as_json=as_json,
            )
    return starts


def _open_behind(session: Session, ends: dict[TopicPartition, int]) -> list[int]:
    """How many offsets open transactions hold back, for each partition where they do."""
    from onceflow.client import LATEST
    from onceflow.client.admin import admin

    last = session.run(admin.list_offsets(session.cluster, dict.fromkeys(ends, LATEST)))
    return [last[each].offset - end for each, end in ends.items() if last[each].offset > end]


def _tell_what_is_open(hidden: list[int], as_json: bool) -> None:
    """Notes that the end at which the command stops is not the end of what was written."""
    offsets, partitions = counted(sum(hidden), "offset"), counted(len(hidden), "partition")
    warn(
        f"{offsets} at the end of {partitions} wait for transactions that are still open; "
        "--isolation read_uncommitted shows them, `onceflow transactions list --state Ongoing` "
        "lists them",
        as_json=as_json,
    )
