"""What the consumer's document shows works as it is written there."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

from onceflow import Broker
from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.consumer import CommitFailed
from onceflow.client.errors.requests import AbortableError
from onceflow.client.producer.producer import Producer
from onceflow.types import TopicPartition

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "CONSUMER.md"
WHOLE, LOOP = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


def test_the_first_example_runs_as_it_is(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHOLE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 b'order 0'", "1 b'order 1'", "2 b'order 2'"]


def test_the_loop_in_transactions_copies_everything_once(onceflow_broker: Broker) -> None:
    bootstrap = onceflow_broker.bootstrap
    names = {
        "AbortableError": AbortableError,
        "CommitFailed": CommitFailed,
        "Consumer": Consumer,
        "Producer": Producer,
        "TopicPartition": TopicPartition,
        "bootstrap": bootstrap,
    }
    exec(f"async def example():\n{indent(LOOP, '    ')}", names)

    async def main() -> list[bytes | None]:
        async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            for topic in ("orders", "invoices"):
                await admin.create_topic(topic, partitions=1)
            for number in range(5):
                await producer.send("orders", b"%d" % number)
            await producer.flush()
            # Made for a group that goes on: where it is to begin is committed first.
            await admin.commit_offsets("shop", {TopicPartition("orders", 0): 0})
            example: object = names["example"]
            assert callable(example)
            running = asyncio.create_task(example())
            while await admin.committed_offsets("shop") != {TopicPartition("orders", 0): 5}:
                assert not running.done()
                await asyncio.sleep(0.02)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        async with Consumer(bootstrap, auto_offset_reset="earliest") as reader:
            await reader.assign(["invoices"])
            found: list[bytes | None] = []
            while records := await reader.poll(1.0):
                found += [record.value for record in records]
            return found

    assert asyncio.run(main()) == [b"0", b"1", b"2", b"3", b"4"]
