"""`onceflow produce`: lines as records."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceflow.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, TopicName
from onceflow.cli.output import counted, note, print_json, print_text, progress_bar
from onceflow.cli.values import parse_settings

if TYPE_CHECKING:
    from onceflow.cli.lines import ParseLine
    from onceflow.cli.session import Session
    from onceflow.client.simple_producer import Sent, SimpleProducer


class Compression(Enum):
    """As Kafka names its codecs."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


InputFile = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="PATH", help="Read lines here, not from standard input."),
]
KeySeparator = Annotated[
    str | None,
    typer.Option(
        "--key-separator", "-k", metavar="TEXT", help="What stands between a line's key and value."
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="For every record. Repeatable."),
]
ToPartition = Annotated[
    int | None,
    typer.Option(
        "--partition", "-p", metavar="N", min=0, max=2**31 - 1, help="All to this one; else by key."
    ),
]
SpeakJson = Annotated[
    bool,
    typer.Option("--json", help="Lines are JSON, as `consume --json` writes it; so is output."),
]


def produce(
    topic: TopicName,
    file: InputFile = None,
    key_separator: KeySeparator = None,
    header: Header = None,
    partition: ToPartition = None,
    compression: Annotated[
        Compression, typer.Option(help="How batches are compressed.")
    ] = Compression.NONE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: SpeakJson = False,
) -> None:
    """Send each line of the input as a record.

    A JSON line has a "value" and, if wanted, "key", "headers" and "timestamp". Records with equal
    keys go to the same partition. It ends at the end of the input, when all is acknowledged.
    """
    from onceflow.cli.lines import json_parser, text_parser
    from onceflow.cli.session import connected

    if as_json and key_separator is not None:
        raise typer.BadParameter("--key-separator is for plain lines; JSON lines have a key field")
    headers = tuple((name, value.encode()) for name, value in parse_settings(header or ()).items())
    parse = json_parser(headers) if as_json else text_parser(key_separator, headers)
    with _opened(file) as (descriptor, size), connected(bootstrap) as session:
        producer = _producer(session, topic, partition, compression)
        if os.isatty(descriptor):
            note(f"Each line becomes a record of {topic}; Ctrl-D ends.")
        sent = _send_all(session, producer, parse, descriptor, size)
    if as_json:
        print_json(_document(topic, sent))
    else:
        print_text(_summary(topic, sent))


@contextmanager
def _opened(file: Path | None) -> Iterator[tuple[int, int | None]]:
    """The descriptor to read from, and the size when it has one."""
    if file is None:
        yield sys.stdin.fileno(), None
        return
    try:
        opened = file.open("rb", buffering=0)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from error
    with opened:
        yield opened.fileno(), os.fstat(opened.fileno()).st_size


def _producer(
    session: Session, topic: str, partition: int | None, compression: Compression
) -> SimpleProducer:
    from onceflow.client.model import TopicPartition
    from onceflow.client.simple_producer import SimpleProducer
    from onceflow.records.batch import Codec
    from onceflow.runtime.clock import RealClock
    from onceflow.runtime.rand import RealRand

    found = session.run(session.cluster.find_topic(topic))
    if partition is not None:
        session.run(session.cluster.leader(TopicPartition(topic, partition)))
    return SimpleProducer(
        session.cluster,
        found,
        clock=RealClock(),
        rand=RealRand(),
        codec=Codec[compression.name],
        partition=partition,
    )


def _send_all(
    session: Session,
    producer: SimpleProducer,
    parse: ParseLine,
    descriptor: int,
    size: int | None,
) -> dict[int, Sent]:
    """What was acknowledged, by partition."""
    from onceflow.cli.lines import parse_lines, read_lines

    total: dict[int, Sent] = {}
    number = 1
    is_typed = os.isatty(descriptor)
    with progress_bar("sending", size, in_bytes=True, prints=is_typed) as bar:
        for lines in read_lines(descriptor):
            records, problem = parse_lines(lines, parse, number)
            for sent in session.run(producer.send(records)):
                total[sent.partition] = sent.after(total.get(sent.partition))
            if problem is not None:
                raise problem
            number += len(lines)
            bar.advance(sum(map(len, lines)) + len(lines))
    return total


def _document(topic: str, sent: dict[int, Sent]) -> dict[str, Any]:
    return {
        "topic": topic,
        "records": sum(each.records for each in sent.values()),
        "partitions": [
            {
                "partition": each.partition,
                "records": each.records,
                "first_offset": each.first_offset,
                "last_offset": each.last_offset,
            }
            for _, each in sorted(sent.items())
        ],
    }


def _summary(topic: str, sent: dict[int, Sent]) -> str:
    count = sum(each.records for each in sent.values())
    if not count:
        return f"The input is empty; nothing was sent to {topic}."
    what = counted(count, "record")
    if len(sent) == 1:
        (only,) = sent.values()
        offsets = f"offset {only.first_offset}"
        if only.records > 1:
            offsets = f"offsets {only.first_offset} to {only.last_offset}"
        return f"sent {what} to {topic}, partition {only.partition}, {offsets}"
    return f"sent {what} to {len(sent)} partitions of {topic}"
