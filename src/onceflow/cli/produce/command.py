"""`onceflow produce`: lines as records; sent again until acknowledged, and counted once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from onceflow.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientSettings,
    TopicName,
    counted,
    note,
    parse_pairs,
    print_json,
    print_text,
    progress_bar,
    require_stdin,
    run_in,
)

if TYPE_CHECKING:
    from onceflow.cli.produce.sending import Sent, Tally

_DEFAULTS: Final[Mapping[str, object]] = {
    "delivery.timeout.ms": 60_000,  # nobody waits two minutes at a terminal
    "batch.size": 256 << 10,  # an input is long, or soon at its end
    "allow.auto.create.topics": False,  # a misspelt one would be another topic
}


class Compression(Enum):
    """As Kafka names its codecs."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


InputFile = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", metavar="PATH", help="Read lines from this file instead of standard input."
    ),
]
KeySeparator = Annotated[
    str | None,
    typer.Option(
        "--key-separator",
        "-k",
        metavar="TEXT",
        help="Separates the key from the value in each line.",
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="A header to add to every record. Repeatable."
    ),
]
ToPartition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="N",
        min=0,
        max=2**31 - 1,
        help="Send all records to this partition. The default is by key.",
    ),
]
TransactionalId = Annotated[
    str | None,
    typer.Option(
        "--transactional-id",
        "-t",
        metavar="ID",
        help="Send the input as one transaction: readers see all of it or nothing.",
    ),
]
SpeakJson = Annotated[
    bool,
    typer.Option("--json", help="Read JSON lines as `consume --json` writes them, and print JSON."),
]


def produce(
    topic: TopicName,
    file: InputFile = None,
    key_separator: KeySeparator = None,
    header: Header = None,
    partition: ToPartition = None,
    transactional_id: TransactionalId = None,
    compression: Annotated[
        Compression, typer.Option(help="Compression of batches.")
    ] = Compression.NONE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    settings: ClientSettings = None,
    as_json: SpeakJson = False,
) -> None:
    """Send each line of the input as a record.

    A JSON line has a "value" and, if wanted, "key", "headers" and "timestamp". Records with equal
    keys go to the same partition. The command ends when the input has ended
    and every record is acknowledged; a record that has to be sent again counts once.
    """
    import asyncio

    from onceflow.cli.common import all_settings
    from onceflow.cli.produce.lines import json_parser, text_parser
    from onceflow.cli.produce.sending import Work, send_input
    from onceflow.client import Producer

    if as_json and key_separator is not None:
        raise typer.BadParameter("--key-separator is for plain lines; JSON lines have a key field")
    headers = tuple((name, os.fsencode(value)) for name, value in parse_pairs(header or ()))
    parse = json_parser(headers) if as_json else text_parser(key_separator, headers)
    chosen = {"transactional.id": transactional_id, "compression.type": compression.value}
    producer = Producer(settings=all_settings(bootstrap, settings, {**_DEFAULTS, **chosen}))
    name = producer.settings.transactional_id
    with _opened(file) as (descriptor, size):
        is_typed = os.isatty(descriptor)
        if is_typed:
            note(_invitation(topic, name))
        with progress_bar("sending", size, in_bytes=True, prints=is_typed) as bar:
            work = Work(descriptor, parse, topic, partition)
            with asyncio.Runner() as runner:
                tally = run_in(runner, send_input(producer, work, bar, as_json=as_json))
    if as_json:
        print_json(_document(topic, name, tally))
    else:
        print_text(_summary(topic, name, tally))


@contextmanager
def _opened(file: Path | None) -> Iterator[tuple[int, int | None]]:
    """The descriptor to read from, and the size when it has one."""
    if file is None:
        require_stdin()
        yield sys.stdin.fileno(), None
        return
    try:
        opened = file.open("rb", buffering=0)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from error
    with opened:
        yield opened.fileno(), os.fstat(opened.fileno()).st_size


def _invitation(topic: str, transactional_id: str | None) -> str:
    if transactional_id is None:
        return f"Each line becomes a record of {topic}; Ctrl-D ends."
    return f"Each line becomes a record of {topic}; Ctrl-D commits them all, Ctrl-C none."


def _document(topic: str, transactional_id: str | None, tally: Tally) -> dict[str, Any]:
    return {
        "topic": topic,
        "transactional_id": transactional_id,
        "records": tally.records,
        "partitions": [
            {
                "partition": each.partition,
                "records": each.records,
                "first_offset": each.first_offset,
                "last_offset": each.last_offset,
            }
            for _, each in sorted(tally.sent.items())
        ],
    }


def _summary(topic: str, transactional_id: str | None, tally: Tally) -> str:
    if not tally.records:
        return f"The input is empty; nothing was sent to {topic}."
    done = "sent" if transactional_id is None else "committed"
    what = counted(tally.records, "record")
    if len(tally.sent) == 1:
        (only,) = tally.sent.values()
        return f"{done} {what} to {topic}, partition {only.partition}, {_offsets(only)}"
    return f"{done} {what} to {len(tally.sent)} partitions of {topic}"


def _offsets(sent: Sent) -> str:
    if sent.records == 1:
        return f"offset {sent.first_offset}"
    return f"offsets {sent.first_offset} to {sent.last_offset}"
