"""Whether the output is exact, as a client that others wrote sees it: confluent-kafka, reading
what is committed.

What has to be there is computed from the input and from the batches in Spark's offset log. `judge`
is for the end; `judge_prefix` for any moment at which no driver runs: then whole batches are
there, and as many as the group's offsets and the ledger say.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import confluent_kafka.admin
from confluent_kafka import Consumer, IsolationLevel, TopicPartition

from tests.interop.broker.clients import client_kafka_python as kafka_python
from tests.spark.kills.query import BAD, WHY, WINDOW_S
from tests.spark.kills.world import World
from tests.spark.sink.world import PATIENCE_S, committed

Ends = dict[int, int]
"""Of each partition of the input, up to where."""
_SHOWN: Final = 5


class Verdict(NamedTuple):
    """What was found; `problems` is empty when all is as it has to be."""

    kind: str
    rows_in: int
    rows_out: int
    dead: int
    doubled: int
    missing: int
    batches: int
    checksum: int
    problems: list[str]

    def __str__(self) -> str:
        told = (
            f"{self.kind}: {self.rows_in} rows in, {self.rows_out} out, {self.dead} dead letters, "
            f"{self.batches} batches, {self.doubled} doubled, {self.missing} missing, "
            f"checksum {self.checksum:08x}"
        )
        return "\n  ".join([told, *self.problems])


def judge(world: World, kind: str) -> Verdict:
    """At the end: everything is there once, whole, in order, and everybody agrees on it."""
    records = committed(world.bootstrap, world.input)
    batches = planned_batches(world)
    ends = batches[max(batches)] if batches else {}
    problems: list[str] = []
    for partition, end in Counter(each.partition() for each in records).items():
        if ends.get(partition) != end:
            problems.append(f"input {partition} has {end} records, planned {ends.get(partition)}")
    if kind != "own":
        problems += _agreement(world, batches)
        problems += open_ends(world.bootstrap, (world.output, world.dead))
    return _compare(world, kind, records, batches, problems)


def judge_prefix(world: World, kind: str) -> list[str]:
    """While nobody writes: what is wrong, if anything."""
    group = topic_offsets(world.bootstrap, world.name, world.input)
    entry = ledger_entry(world.bootstrap, world.name)
    batches = planned_batches(world)
    last = -1 if entry is None else int(entry["batch"])
    problems = []
    if batches.get(last, {}) != group:
        problems.append(
            f"group at {group}, ledger at batch {last}, which ends at {batches.get(last)}"
        )
    records = [
        each
        for each in committed(world.bootstrap, world.input)
        if each.offset() < group.get(each.partition(), 0)
    ]
    done = {number: ends for number, ends in batches.items() if number <= last}
    return _compare(world, kind, records, done, problems).problems


# --- what has to be there -----------------------------------------------------------------------


def planned_batches(world: World) -> dict[int, Ends]:
    """Where each batch ends, from Spark's offset log."""
    found = {}
    for path in (world.checkpoint / "offsets").glob("[0-9]*"):
        last_line = path.read_text().splitlines()[-1]
        ends = json.loads(last_line)["to"][world.input]
        found[int(path.name)] = {int(partition): end for partition, end in ends.items()}
    return found


def expected_rows(records: Iterable[Any]) -> Counter[str]:
    """The values of all good rows."""
    return Counter(
        f"{_text(each)} {each.partition()} {each.offset()}"
        for each in records
        if BAD not in _text(each)
    )


def expected_counts(records: Iterable[Any], batches: Mapping[int, Ends]) -> Counter[str]:
    """What a window's count and sum were after each batch that has changed them."""
    by_batch: dict[int, list[Any]] = defaultdict(list)
    for each in records:
        number = min(n for n, ends in batches.items() if each.offset() < ends[each.partition()])
        by_batch[number].append(each)
    state: dict[tuple[str, int], tuple[int, int]] = {}
    found: Counter[str] = Counter()
    for number in sorted(by_batch):
        changed = set()
        for each in by_batch[number]:
            second = each.timestamp()[1] // 1000
            group = (each.key().decode(), second - second % WINDOW_S)
            count, total = state.get(group, (0, 0))
            state[group] = (count + 1, total + int(_text(each).split()[0]))
            changed.add(group)
        found.update(f"{key} {start} {_pair(state[key, start])}" for key, start in changed)
    return found


def _pair(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]} {numbers[1]}"


def _text(record: Any) -> str:
    text: str = record.value().decode()
    return text


# --- what is there ------------------------------------------------------------------------------


def _compare(
    world: World,
    kind: str,
    records: list[Any],
    batches: Mapping[int, Ends],
    problems: list[str],
) -> Verdict:
    output = committed(world.bootstrap, world.output)
    dead = [] if kind == "counts" else committed(world.bootstrap, world.dead)
    if kind == "counts":
        wanted = expected_counts(records, batches)
        found = Counter(f"{each.key().decode()} {_text(each)}" for each in output)
        letters: Counter[Any] = Counter()
    else:
        wanted = expected_rows(records)
        found = Counter(_text(each) for each in output)
        letters = Counter(_letter(each, kind) for each in dead)
    wanted_letters = Counter(
        _wanted_letter(each, kind) for each in records if kind != "counts" and BAD in _text(each)
    )
    problems = list(problems)
    for what, there, due in (("row", found, wanted), ("dead letter", letters, wanted_letters)):
        problems += _differences(what, there, due)
    problems += _disorder(kind, output)
    return Verdict(
        kind=kind,
        rows_in=len(records),
        rows_out=len(output),
        dead=len(dead),
        doubled=(found - wanted).total() + (letters - wanted_letters).total(),
        missing=(wanted - found).total() + (wanted_letters - letters).total(),
        batches=len(batches),
        checksum=sum(zlib.crc32(value.encode()) * n for value, n in found.items()) & 0xFFFFFFFF,
        problems=problems,
    )


def _letter(record: Any, kind: str) -> Any:
    return _text(record) if kind == "own" else (_text(record), *sorted(record.headers() or ()))


def _wanted_letter(record: Any, kind: str) -> Any:
    headers = {
        "error": WHY,
        "source.topic": record.topic(),
        "source.partition": str(record.partition()),
        "source.offset": str(record.offset()),
    }
    told = sorted((name, value.encode()) for name, value in headers.items())
    return _text(record) if kind == "own" else (_text(record), *told)


def _differences(what: str, found: Counter[Any], wanted: Counter[Any]) -> Iterable[str]:
    for label, over in (("missing", wanted - found), ("too many", found - wanted)):
        if over:
            shown = [each for each, _ in over.most_common(_SHOWN)]
            yield f"{what}s {label}: {over.total()}, as {shown}"


def _disorder(kind: str, output: list[Any]) -> Iterable[str]:
    """Keys stay in one partition, and their rows in order: by number, or by a growing count."""
    at: dict[Any, tuple[int, int]] = {}
    for each in output:
        words = _text(each).split()
        group = (each.key(), words[0]) if kind == "counts" else each.key()
        here = (each.partition(), int(words[1] if kind == "counts" else words[0]))
        before = at.setdefault(group, here)
        if before[0] != here[0]:
            yield f"{group} is in partitions {before[0]} and {here[0]}"
        if before[1] > here[1] and kind != "own":
            yield f"{group}: {here[1]} comes after {before[1]}"
        at[group] = here


# --- who agrees ---------------------------------------------------------------------------------


def topic_offsets(bootstrap: str, group: str, topic: str) -> Ends:
    """What is committed of a topic in the query's group."""
    # Offsets of a transaction that somebody has left open do not count, and are not waited for.
    hasty = {"isolation.level": "read_uncommitted"}
    known = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **hasty})
    try:
        partitions = known.list_topics(topic, PATIENCE_S).topics[topic].partitions
        places = [TopicPartition(topic, each) for each in partitions]
        found = known.committed(places, PATIENCE_S)
    finally:
        known.close()
    return {each.partition: each.offset for each in found if each.offset >= 0}


def ledger_entry(bootstrap: str, name: str) -> dict[str, Any] | None:
    """By kafka-python: confluent-kafka reads beyond the end of an offset's metadata."""
    admin: Any = kafka_python.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    try:
        (found,) = admin.list_group_offsets(f"{name}.ledger").values()
    finally:
        admin.close()
    entry = found.get(kafka_python.TopicPartition("onceflow-ledger", 0))
    return None if entry is None else json.loads(entry.metadata)


def _agreement(world: World, batches: Mapping[int, Ends]) -> Iterable[str]:
    """The group's offsets, the ledger and Spark's own logs name the same last batch."""
    entry = ledger_entry(world.bootstrap, world.name)
    group = topic_offsets(world.bootstrap, world.name, world.input)
    last = max(batches, default=-1)
    if entry is None or entry["batch"] != last:
        yield f"the ledger has {entry}, Spark's last batch is {last}"
    if group != batches.get(last):
        yield f"the group is at {group}, Spark's last batch ends at {batches.get(last)}"
    done = {int(path.name) for path in (world.checkpoint / "commits").glob("[0-9]*")}
    if done != batches.keys():
        yield f"batches without an end in Spark's log: {sorted(batches.keys() - done)}"


def open_ends(bootstrap: str, written: Iterable[str]) -> Iterable[str]:
    """Where a transaction is left open: the last stable offset is not the end."""
    confluent: Any = confluent_kafka.admin
    admin = confluent.AdminClient({"bootstrap.servers": bootstrap})
    topics = admin.list_topics(timeout=PATIENCE_S).topics
    places = [TopicPartition(topic, each) for topic in written for each in topics[topic].partitions]
    wanted = {place: confluent.OffsetSpec.latest() for place in places}
    ends: list[dict[Any, int]] = []
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        asked = admin.list_offsets(wanted, isolation_level=level, request_timeout=PATIENCE_S)
        found = {(place.topic, place.partition): each for place, each in asked.items()}
        ends.append({place: each.result(PATIENCE_S).offset for place, each in found.items()})
    for place, stable in ends[0].items():
        if stable != ends[1][place]:
            yield f"{place}: the last stable offset is {stable}, the end {ends[1][place]}"
