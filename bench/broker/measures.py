"""The measures: each puts one load on one broker for a second or three and returns its numbers."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from bench.common.targets import (
    BenchError,
    Ours,
    Start,
    Target,
    Usage,
    java_command,
    make_target,
    usage,
)
from bench.common.turn import (
    Measure,
    Turn as AnyTurn,
    Values,
    create_topic,
    python_load,
    quantiles,
    run_load,
    spending,
)
from tools.kafka_jars import ensure_kafka_jars

PARTITIONS: Final = 4
SIZES: Final = {"1k": 1024, "100": 100}
LIBRDKAFKA_BATCH: Final = 64 << 10
SAMPLE_SECONDS: Final = 0.05
IDLE_CONNECTIONS: Final = 500
GB: Final = 1e9
MB: Final = 1e6


class Scale(NamedTuple):
    """How much work one turn is."""

    records: dict[str, int]
    java_records: dict[str, int]
    passes: dict[str, int]
    latency_records: int
    memory_records: int
    seconds: float
    warm_ups: int


FULL: Final = Scale(
    records={"1k": 200_000, "100": 800_000},
    java_records={"1k": 30_000, "100": 150_000},
    passes={"1k": 4, "100": 2},
    latency_records=2000,
    memory_records=100_000,
    seconds=1.5,
    warm_ups=2,
)
QUICK: Final = Scale(
    records={"1k": 50_000, "100": 200_000},
    java_records={"1k": 10_000, "100": 50_000},
    passes={"1k": 1, "100": 1},
    latency_records=300,
    memory_records=20_000,
    seconds=0.3,
    warm_ups=1,
)


Turn: TypeAlias = AnyTurn[Scale]

librdkafka = partial(python_load, module="common.load_librdkafka")
raw = partial(python_load, module="broker.load_raw")


def stream(turn: Turn, size: str) -> Values:
    """Produce in batches of 64 KB, then read it all; both with what they cost the broker."""
    topic = f"stream-{size}-{turn.round}"
    create_topic(turn.target, topic, PARTITIONS)
    records, passes, record_bytes = turn.scale.records[size], turn.scale.passes[size], SIZES[size]
    with spending(turn.target) as producing:
        produced = librdkafka(
            turn,
            load="produce",
            topic=topic,
            partitions=PARTITIONS,
            records=records,
            record_bytes=record_bytes,
            batch_bytes=LIBRDKAFKA_BATCH,
        )
    with spending(turn.target) as consuming:
        consumed = librdkafka(
            turn,
            load="consume",
            topic=topic,
            partitions=PARTITIONS,
            records=records,
            passes=passes,
        )
    gigabytes = records * record_bytes / GB
    to_produce = producing.seconds / gigabytes
    to_consume = consuming.seconds / (gigabytes * passes)
    return {
        f"produce-{size}": records / produced["seconds"],
        f"consume-{size}": records * passes / consumed["seconds"],
        f"cpu-{size}": to_produce + to_consume,
        f"cpu-produce-{size}": to_produce,
        f"cpu-consume-{size}": to_consume,
    }


def large_batches(turn: Turn, size: str) -> Values:
    """Produce in batches of up to 1 MB, librdkafka's default."""
    topic = f"large-{size}-{turn.round}"
    create_topic(turn.target, topic, PARTITIONS)
    records = turn.scale.records[size]
    produced = librdkafka(
        turn,
        load="produce",
        topic=topic,
        partitions=PARTITIONS,
        records=records,
        record_bytes=SIZES[size],
    )
    return {f"produce-large-{size}": records / produced["seconds"]}


def java(turn: Turn, size: str) -> Values:
    topic = f"java-{size}-{turn.round}"
    create_topic(turn.target, topic, PARTITIONS)
    rate = java_rate(
        turn.target,
        topic,
        turn.scale.java_records[size],
        SIZES[size],
        *("--command-property", "acks=all", "enable.idempotence=false"),
    )
    return {f"java-{size}": rate}


def java_rate(target: Target, topic: str, records: int, record_bytes: int, *how: str) -> float:
    """Records a second by Apache Kafka's ProducerPerformance, after as many to warm up."""
    said = run_load(
        [
            *java_command(ensure_kafka_jars(), "-Xmx256M"),
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--throughput", "-1"),
            *("--num-records", str(2 * records), "--warmup-records", str(records)),
            *("--record-size", str(record_bytes), "--bootstrap-server", target.bootstrap),
            *how,
        ]
    )
    rates = re.findall(r"^(\d+) steady state records sent, ([\d.]+) records/sec", said, re.M)
    if not rates or int(rates[-1][0]) != records:
        raise BenchError(f"ProducerPerformance said nothing of {records} records:\n{said}")
    return float(rates[-1][1])


def latency(turn: Turn) -> Values:
    """One record of 100 B in flight: over a bare socket, and by librdkafka."""
    create_topic(turn.target, "latency", PARTITIONS)
    bare = raw(
        turn,
        load="latency",
        topic="latency",
        partitions=PARTITIONS,
        records=1,
        seconds=turn.scale.seconds,
    )
    client = librdkafka(
        turn,
        load="latency",
        topic="latency",
        partitions=PARTITIONS,
        records=turn.scale.latency_records,
    )
    return {
        **quantiles("latency", bare["milliseconds"]),
        **quantiles("latency-librdkafka", client["milliseconds"]),
    }


def start(turn: Turn) -> Values:
    """A broker of its own, on an empty directory and after a clean stop."""
    name = turn.target.name
    directory = turn.scratch / f"start-{name}"
    again = make_target(name, directory)
    values: Values = {}
    if isinstance(again, Ours):
        shutil.rmtree(directory, ignore_errors=True)
        values["start-empty"] = start_and_stop(again).accepted
    elif not directory.exists():
        start_and_stop(again)
    started = start_and_stop(again)
    return {**values, "start": started.accepted, "start-answer": started.answered}


def start_and_stop(target: Target) -> Start:
    os.sync()
    try:
        return target.start()
    finally:
        target.stop()


@contextmanager
def watched(target: Target) -> Iterator[list[Usage]]:
    """What the broker uses, again and again while the block runs."""
    samples: list[Usage] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            samples.append(usage(target.pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def memory(turn: Turn) -> Values:
    """The most that is resident while 100 partitions are written and read."""
    create_topic(turn.target, "memory", 100)
    records = turn.scale.memory_records
    with watched(turn.target) as samples:
        librdkafka(
            turn,
            load="produce",
            topic="memory",
            partitions=100,
            records=records,
            record_bytes=1024,
            batch_bytes=LIBRDKAFKA_BATCH,
        )
        librdkafka(turn, load="consume", topic="memory", partitions=100, records=records)
    return {"memory": max(sample.resident_bytes for sample in samples) / MB}


def growth(turn: Turn) -> Values:
    """50 connections go round 200 partitions with batches of 20 records of 100 B."""
    create_topic(turn.target, "growth", 200)
    numbers = raw(
        turn,
        load="rate",
        topic="growth",
        partitions=200,
        records=20,
        connections=50,
        seconds=turn.scale.seconds,
    )
    return {"growth": numbers["rates"][0]}


def idle(turn: Turn) -> Values:
    """What 20 busy connections keep of their rate when 500 silent ones are open."""
    create_topic(turn.target, "idle", PARTITIONS)
    numbers = raw(
        turn,
        load="rate",
        topic="idle",
        partitions=PARTITIONS,
        records=20,
        connections=20,
        # There and back, so that a drift of the machine falls on both alike.
        idle=[0, IDLE_CONNECTIONS, IDLE_CONNECTIONS, 0],
        seconds=turn.scale.seconds / 2,
    )
    first, second, third, fourth = numbers["rates"]
    return {"busy": (first + fourth) / 2, "idle": (second + third) / (first + fourth)}


def warm_up(turn: Turn) -> None:
    """What a JVM needs before it shows what it can do (cold, it is slower by far); all get it."""
    for number in range(turn.scale.warm_ups):
        for size in SIZES:
            stream(turn._replace(round=-1 - number), size)
        growth(turn)
    idle(turn)


MEASURES: Final = (
    *(Measure(f"stream-{size}", partial(stream, size=size)) for size in SIZES),
    *(Measure(f"large-{size}", partial(large_batches, size=size)) for size in SIZES),
    *(Measure(f"java-{size}", partial(java, size=size)) for size in SIZES),
    Measure("latency", latency),
    Measure("growth", growth),
    Measure("idle", idle),
    Measure("start", start),
    # Last, when the brokers have seen all the load there is.
    Measure("memory", memory),
)
