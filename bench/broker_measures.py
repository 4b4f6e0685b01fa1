"""The measures: each puts one load on one broker for a second or three and returns its numbers.

Before each load the disk is synced, so that one broker's unwritten pages are not written in
another's turn. What a broker costs is read from /proc around the load, when the disk has been
synced again. Loads run in processes of their own and are ended when they take too long.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.broker_targets import (
    BenchError,
    Ours,
    Start,
    Target,
    Usage,
    java_command,
    make_target,
    usage,
)
from tools.kafka_jars import ensure_kafka_jars

PARTITIONS: Final = 4
SIZES: Final = {"1k": 1024, "100": 100}
LIBRDKAFKA_BATCH: Final = 64 << 10
LOAD_SECONDS_MAX: Final = 120.0
SAMPLE_SECONDS: Final = 0.05
IDLE_CONNECTIONS: Final = 500
GB: Final = 1e9
MB: Final = 1e6

Values = dict[str, float]


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


class Turn(NamedTuple):
    """One broker's turn in one round of a measure."""

    target: Target
    round: int
    scale: Scale
    scratch: Path


class Measure(NamedTuple):
    name: str
    run: Callable[[Turn], Values]


def create_topic(target: Target, name: str, partitions: int) -> None:
    """Makes the topic unless it is there."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 3})
    if name in admin.list_topics(timeout=LOAD_SECONDS_MAX).topics:
        return
    for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        made.result(LOAD_SECONDS_MAX)


def run_load(command: list[str]) -> str:
    os.sync()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOAD_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"not done after {LOAD_SECONDS_MAX:.0f} s: {' '.join(command)}") from None
    if done.returncode != 0:
        said = (done.stderr + done.stdout)[-2000:].strip()
        raise BenchError(f"{' '.join(command[1:4])} ended with status {done.returncode}: {said}")
    return done.stdout


def python_load(turn: Turn, module: str, load: str, topic: str, **options: object) -> Any:
    command = [sys.executable, "-m", f"bench.{module}", load]
    command += ["--bootstrap", turn.target.bootstrap, "--topic", topic]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        command += [f"--{name.replace('_', '-')}", *map(str, values)]
    return json.loads(run_load(command))


librdkafka = partial(python_load, module="load_librdkafka")
raw = partial(python_load, module="load_raw")


class Spent:
    """CPU seconds that a broker used inside the block of `spending`."""

    seconds = 0.0


@contextmanager
def spending(target: Target) -> Iterator[Spent]:
    spent = Spent()
    before = usage(target.pid).cpu_seconds
    yield spent
    os.sync()
    spent.seconds = usage(target.pid).cpu_seconds - before


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
    return {
        f"produce-{size}": records / produced["seconds"],
        f"consume-{size}": records * passes / consumed["seconds"],
        f"cpu-produce-{size}": producing.seconds / gigabytes,
        f"cpu-consume-{size}": consuming.seconds / (gigabytes * passes),
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
    """Apache Kafka's ProducerPerformance, after as many records to warm up."""
    topic = f"java-{size}-{turn.round}"
    create_topic(turn.target, topic, PARTITIONS)
    records = turn.scale.java_records[size]
    said = run_load(
        [
            *java_command(ensure_kafka_jars(), "-Xmx256M"),
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--throughput", "-1"),
            *("--num-records", str(2 * records), "--warmup-records", str(records)),
            *("--record-size", str(SIZES[size]), "--bootstrap-server", turn.target.bootstrap),
            *("--command-property", "acks=all", "enable.idempotence=false"),
        ]
    )
    rates = re.findall(r"^(\d+) steady state records sent, ([\d.]+) records/sec", said, re.M)
    if not rates or int(rates[-1][0]) != records:
        raise BenchError(f"ProducerPerformance said nothing of {records} records:\n{said}")
    return {f"java-{size}": float(rates[-1][1])}


def quantiles(prefix: str, milliseconds: list[float]) -> Values:
    cuts = statistics.quantiles(milliseconds, n=100)
    return {f"{prefix}-p50": cuts[49], f"{prefix}-p99": cuts[98]}


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
