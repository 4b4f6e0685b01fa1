"""The measures of the client: the same work by two clients, on one broker, inside one turn.

Each turn goes there and back (ours, theirs, theirs, ours), so that a drift of the machine falls on
both alike; the ratio is taken from those four loads. Besides the rate there is what a record costs
in CPU time of the client's process, which a busy machine moves far less.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from confluent_kafka.admin import AdminClient

from bench.common.targets import BenchError, Ours
from bench.common.turn import (
    LOAD_SECONDS_MAX,
    Measure,
    Turn as AnyTurn,
    Values,
    create_topic,
    python_load,
)

PARTITIONS: Final = 4
SIZES: Final = {"1k": 1024, "100": 100}
WARM_UP: Final = 3
US: Final = 1e6
MS: Final = 1e3


class Scale(NamedTuple):
    """How much work one load of a turn is."""

    sent: dict[str, int]
    bulk: dict[str, int]
    passes: dict[str, int]
    transactions: dict[str, int]
    imports: int


FULL: Final = Scale(
    sent={"1k": 100_000, "100": 300_000},
    bulk={"1k": 200_000, "100": 800_000},
    passes={"1k": 4, "100": 2},
    transactions={"onceflow": 400, "aiokafka": 60, "confluent": 300},
    imports=7,
)
QUICK: Final = Scale(
    sent={"1k": 10_000, "100": 30_000},
    bulk={"1k": 20_000, "100": 60_000},
    passes={"1k": 1, "100": 1},
    transactions={"onceflow": 20, "aiokafka": 5, "confluent": 20},
    imports=1,
)
Turn: TypeAlias = AnyTurn[Scale]

ours = partial(python_load, module="client.load_client", partitions=PARTITIONS, client="onceflow")
aiokafka = partial(
    python_load, module="client.load_client", partitions=PARTITIONS, client="aiokafka"
)
confluent = partial(python_load, module="client.load_confluent", partitions=PARTITIONS)
ASYNCIO_CLIENTS: Final = {"onceflow": ours, "aiokafka": aiokafka}


class Work(NamedTuple):
    """A load by one client, and how many records it is."""

    run: Callable[[], Any]
    records: int


class Cost(NamedTuple):
    """Of one record."""

    seconds: float
    cpu_seconds: float


def there_and_back(work: Mapping[str, Work]) -> dict[str, Cost]:
    """Each load twice, by the name of its client; the second time in the opposite order."""
    seconds, cpu_seconds = dict.fromkeys(work, 0.0), dict.fromkeys(work, 0.0)
    for name in (*work, *reversed(list(work))):
        numbers = work[name].run()
        seconds[name] += numbers["seconds"]
        cpu_seconds[name] += numbers["cpu_seconds"]
    return {
        name: Cost(seconds[name] / (2 * each.records), cpu_seconds[name] / (2 * each.records))
        for name, each in work.items()
    }


def compared(metric: str, costs: Mapping[str, Cost], theirs: str) -> Values:
    """Rates and CPU time of all, and ours to theirs."""
    own = costs["onceflow"]
    values = {
        metric: costs[theirs].seconds / own.seconds,
        f"{metric}-cpu": costs[theirs].cpu_seconds / own.cpu_seconds,
    }
    for name, cost in costs.items():
        values[f"{metric}-{name}-rate"] = 1 / cost.seconds
        values[f"{metric}-{name}-us"] = cost.cpu_seconds * US
    return values


@contextmanager
def passing_topic(turn: Turn, name: str) -> Iterator[str]:
    """There while the block runs: gigabytes that nobody needs any more would fill the disk."""
    topic = f"{name}-{turn.round}"
    create_topic(turn.target, topic, PARTITIONS)
    yield topic
    admin = AdminClient({"bootstrap.servers": turn.target.bootstrap, "log_level": 3})
    for deleted in admin.delete_topics([topic]).values():
        deleted.result(LOAD_SECONDS_MAX)


# --- producing ----------------------------------------------------------------------------------


def send(turn: Turn, size: str, keyed: bool = False) -> Values:
    """`send`, record by record."""
    count = turn.scale.sent[size]
    name = f"keyed-{size}" if keyed else f"send-{size}"
    with passing_topic(turn, name) as topic:
        how = {
            "load": "send",
            "topic": topic,
            "records": count,
            "record_bytes": SIZES[size],
            "keyed": int(keyed),
        }
        costs = there_and_back(
            {
                "onceflow": Work(partial(ours, turn, **how), count),
                "aiokafka": Work(partial(aiokafka, turn, **how), count),
            }
        )
    return compared(name, costs, "aiokafka")


def table(turn: Turn, size: str) -> Values:
    """`send_table` against a loop over confluent-kafka's `produce`."""
    count = turn.scale.bulk[size]
    with passing_topic(turn, f"table-{size}") as topic:
        how = {"topic": topic, "records": count, "record_bytes": SIZES[size]}
        costs = there_and_back(
            {
                "onceflow": Work(partial(ours, turn, load="table", **how), count),
                "confluent": Work(partial(confluent, turn, load="produce", **how), count),
            }
        )
    return compared(f"table-{size}", costs, "confluent")


def one(turn: Turn) -> Values:
    """One record of 100 B, committed, again and again."""
    create_topic(turn.target, "one", PARTITIONS)
    counts = turn.scale.transactions
    how = {"load": "one", "topic": "one", "warm_up": WARM_UP}

    def asyncio_client(name: str) -> Work:
        count = counts[name]
        return Work(partial(ASYNCIO_CLIENTS[name], turn, records=count, **how), count)

    costs = there_and_back(
        {
            "onceflow": asyncio_client("onceflow"),
            "aiokafka": asyncio_client("aiokafka"),
            "confluent": Work(partial(confluent_transactions, turn), counts["confluent"]),
        }
    )
    third = costs.pop("confluent")
    return {
        **compared("one", costs, "aiokafka"),
        "one-confluent": third.seconds / costs["onceflow"].seconds,
        "one-confluent-rate": 1 / third.seconds,
    }


def confluent_transactions(turn: Turn) -> dict[str, float]:
    count = turn.scale.transactions["confluent"]
    numbers = python_load(
        turn,
        module="transactions.load_transactions",
        load="one",
        topic="one",
        partitions=PARTITIONS,
        transactions=count,
        warm_up=WARM_UP,
    )
    return {"seconds": sum(numbers["milliseconds"]) / MS, "cpu_seconds": 0.0}


# --- reading ------------------------------------------------------------------------------------


def read(turn: Turn, size: str) -> Values:
    """Tables against confluent-kafka's `consume`, then records against aiokafka's `getmany`."""
    count, passes = turn.scale.bulk[size], turn.scale.passes[size]
    with passing_topic(turn, f"read-{size}") as topic:
        confluent(turn, load="produce", topic=topic, records=count, record_bytes=SIZES[size])
        # Its own warm-up is in the topic as well; all read the same number.
        how = {"topic": topic, "records": count, "passes": passes}
        tables = there_and_back(
            {
                "onceflow": Work(partial(ours, turn, load="read", **how), count * passes),
                "confluent": Work(partial(confluent, turn, load="consume", **how), count * passes),
            }
        )
        by_record = read_by_record(turn, topic, size)
    return {**compared(f"read-{size}", tables, "confluent"), **by_record}


def poll(turn: Turn, size: str) -> Values:
    """The second half of `read`, by itself."""
    with passing_topic(turn, f"poll-{size}") as topic:
        count = turn.scale.bulk[size]
        confluent(turn, load="produce", topic=topic, records=count, record_bytes=SIZES[size])
        return read_by_record(turn, topic, size)


def read_by_record(turn: Turn, topic: str, size: str) -> Values:
    """All of a topic, once, by our `poll` and by aiokafka's `getmany`."""
    count = turn.scale.bulk[size]
    how = {"load": "records", "topic": topic, "records": count, "passes": 1}
    costs = there_and_back(
        {
            "onceflow": Work(partial(ours, turn, **how), count),
            "aiokafka": Work(partial(aiokafka, turn, **how), count),
        }
    )
    return compared(f"records-{size}", costs, "aiokafka")


# --- importing ----------------------------------------------------------------------------------


IMPORTS: Final = {
    "bare": "",
    "asyncio": "import asyncio",
    "producer": "import onceflow.client.producer.producer",
    "fetcher": "import onceflow.client.consumer.fetcher",
    "admin": "import onceflow.client.admin.admin",
    "aiokafka": "import aiokafka",
    "confluent": "import confluent_kafka",
}


def imports(turn: Turn) -> Values:
    """What a new process takes to import a client, above one that imports nothing: medians of turns
    that go round. No broker is asked, so it is measured once a round."""
    if not isinstance(turn.target, Ours):
        return {}
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(turn.scratch / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    taken: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(1 + turn.scale.imports):
        for name, code in IMPORTS.items():
            taken[name].append(process_ms(code, environment))
    # The first ones compile, as an installation does.
    medians = {name: statistics.median(each[1:]) for name, each in taken.items()}
    bare = medians.pop("bare")
    values = {f"import-{name}": taken_ms - bare for name, taken_ms in medians.items()}
    return {
        "import-bare": bare,
        **values,
        "import": values["import-aiokafka"] / values["import-producer"],
    }


def process_ms(code: str, environment: Mapping[str, str]) -> float:
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LOAD_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"{code} ended with status {done.returncode}: {done.stderr[-2000:]}")
    return (time.perf_counter() - begin) * MS


def warm_up(turn: Turn) -> None:
    """What a JVM needs before it shows what it can do (cold, it is slower by far); all get it."""
    before = turn._replace(round=-1)
    for size in SIZES:
        table(before, size)
        read(before, size)
    one(before)


MEASURES: Final = (
    *(Measure(f"send-{size}", partial(send, size=size)) for size in SIZES),
    Measure("keyed-100", partial(send, size="100", keyed=True)),
    *(Measure(f"table-{size}", partial(table, size=size)) for size in SIZES),
    *(Measure(f"read-{size}", partial(read, size=size)) for size in SIZES),
    Measure("one", one),
    Measure("import", imports),
)
