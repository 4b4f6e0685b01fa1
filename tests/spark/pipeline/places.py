"""One file of a pipeline, run by `onceflow run` wherever it can run, and judged the same way."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from types import ModuleType

import onceflow
from onceflow.client.admin.admin import Admin
from onceflow.client.errors.requests import BrokerError
from tests.interop.client.cluster.three_nodes import ask
from tests.spark.pipeline.examples import Example
from tests.spark.pipeline.judge import judge_example
from tests.spark.pipeline.run import Run, running
from tests.spark.pipeline.world import example as copied, read_all

COUNTS = (150, 100)
"""What is sent before, and while it runs; the generator begins anew each time."""
PARTITIONS = 2


def make_topics(example: Example, bootstrap: str) -> None:
    """All that it reads and writes, known to every node."""

    async def make(admin: Admin) -> None:
        for topic in example.topics:
            try:
                await admin.create_topic(topic, partitions=PARTITIONS)
            except BrokerError as error:
                # On a busy machine an answer may be late, and the request is sent again.
                if error.name != "TOPIC_ALREADY_EXISTS":
                    raise

    ask(bootstrap, make)


def run_on_brokers(example: Example, bootstrap: str, directory: Path, *arguments: str) -> list[str]:
    """On brokers that are there; what is wrong with what has come out."""
    path, generate = copied(example.directory, directory)
    make_topics(example, bootstrap)
    _send(generate, bootstrap, COUNTS[0])
    with running(path, "--bootstrap", bootstrap, *arguments) as (run, _):
        _follow(run, example, generate, bootstrap)
    return judge_example(example, bootstrap, path.parent / example.checkpoint)


def run_beside_its_broker(example: Example, directory: Path, *arguments: str) -> list[str]:
    """With the broker that the file says is to be started; at any port that is free."""
    path, generate = copied(example.directory, directory)
    text = path.read_text().replace("[broker]\n", '[broker]\nlisten = "127.0.0.1:0"\n')
    path.write_text(text)
    with running(path, *arguments) as (run, bootstrap):
        _send(generate, bootstrap, COUNTS[0])
        _follow(run, example, generate, bootstrap)
    with onceflow.Broker(process=True, data_dir=path.parent / "state/broker") as broker:
        return judge_example(example, broker.bootstrap, path.parent / example.checkpoint)


def _send(generate: ModuleType, bootstrap: str, count: int) -> None:
    asyncio.run(generate.send(bootstrap, count))


def _follow(run: Run, example: Example, generate: ModuleType, bootstrap: str) -> None:
    """Until it has read what was sent, and once more after some more; then it is stopped."""
    for count in (0, COUNTS[1]):
        _send(generate, bootstrap, count)
        run.until_read(sum(len(read_all(bootstrap, topic)) for topic in example.inputs))
    run.signal(signal.SIGINT, to_all=True)
    status, last = run.end()
    assert (status, last["state"]) == (0, "ended"), run.said
