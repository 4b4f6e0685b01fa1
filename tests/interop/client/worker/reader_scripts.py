"""What is asked of a blocking reader on each broker: the scripts themselves."""

from __future__ import annotations

from onceflow.client.settings.clients import ProducerSettings, ReaderSettings
from onceflow.client.worker.reader import BlockingReader
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.client.worker.writer import BlockingWriter
from onceflow.types import TopicPartition
from tests.interop.client.worker.worker_process import columns
from tests.interop.client.worker.workers import driver, outcome, reader, settings, settled, topic
from tests.interop.harness import Names, Transcript

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


ROWS = 40


def fill(finisher: TransactionClient, place: TopicPartition, names: Names) -> None:
    """Transactions of every codec, each second one aborted."""
    for number, codec in enumerate(CODECS):
        chosen: ProducerSettings = settings(names, compression_type=codec)
        with BlockingWriter(finisher.begin([place]), chosen, max_batch_bytes=300) as writer:
            writer.write(*place, columns([f"{codec} {n}" for n in range(ROWS)]))
            writer.flush()
        finisher.abort() if number % 2 else finisher.commit()


def rows(
    reading: BlockingReader, place: TopicPartition, start: int, end: int
) -> list[list[object]]:
    found: list[list[object]] = []
    for batch in reading.read(*place, start, end):
        offsets, values = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
        found += [[offset, value] for offset, value in zip(offsets, values, strict=True)]
        assert set(batch.column("partition").to_pylist()) == {place.partition}
    return [[offset, value.decode()] for offset, value in found]  # type: ignore[attr-defined]  # bytes


def ranges(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Every range ends where it should, also in the middle of batches and at markers."""
    place = topic(names, "in")[0]
    with driver(names, 2) as finisher:
        finisher.init()
        fill(finisher, place, names)
    settled(names, [place])
    small = ReaderSettings.of(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=500, default_api_timeout_ms=20_000
    )
    with BlockingReader(small) as reading, reader(names, "read_uncommitted") as everything:
        start, end = reading.ends(*place)
        transcript.note("ends", [start, end])
        transcript.note("committed", rows(reading, place, start, end))
        transcript.note("all", len(rows(everything, place, start, end)))
        for first, last in ((0, 1), (7, 13), (38, 41), (40, 41), (41, 82), (60, 100), (5, 5)):
            transcript.note(f"{first} to {last}", rows(reading, place, first, last))
            transcript.note(f"all {first} to {last}", rows(everything, place, first, last))


def not_there(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """What cannot be read is told, in time, with where the log ends."""
    place = topic(names, "in")[0]
    with driver(names, 2) as finisher, reader(names, seconds=0.5) as reading:
        finisher.init()
        opened = finisher.begin([place])
        with BlockingWriter(opened) as writer:
            writer.write(*place, columns(["a", "b"]))
            writer.flush()
        transcript.note("open", outcome(lambda: rows(reading, place, 0, 2)))
        finisher.commit()
        settled(names, [place])
        transcript.note("committed", rows(reading, place, 0, 2))
        transcript.note("beyond", outcome(lambda: rows(reading, place, 0, 9)))
        transcript.note("far beyond", outcome(lambda: rows(reading, place, 9, 10)))
        missing = TopicPartition(place.topic, 7)
        transcript.note("partition", outcome(lambda: rows(reading, missing, 0, 1)))
        first = reading.read(*place, 0, 2)
        next(first)
        transcript.note("second", outcome(lambda: rows(reading, place, 0, 1)))
        first.close()  # type: ignore[attr-defined]  # a generator
        transcript.note("after the first", rows(reading, place, 0, 1))
