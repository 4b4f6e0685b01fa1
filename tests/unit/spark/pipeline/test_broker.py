"""The broker beside a pipeline: it comes back when it has died, but not for ever."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from onceflow.spark.errors.pipeline import MasterRefused, PipelineFailed
from onceflow.spark.pipeline.broker import PipelineBroker, pipeline_broker
from onceflow.spark.pipeline.parse import read_plan
from onceflow.spark.pipeline.plan import PipelinePlan
from tests.interop.harness import eventually


@pytest.fixture
def plan(tmp_path: Path) -> PipelinePlan:
    document = {
        "pipeline": {"name": "beside", "checkpoint": "state"},
        "source": {"topics": ["in"], "format": "raw"},
        "sink": {"topic": "out", "format": "raw"},
        "broker": {"listen": "127.0.0.1:0", "data_dir": "data"},
    }
    return read_plan(document, tmp_path)


@pytest.fixture
def broker(plan: PipelinePlan) -> Iterator[PipelineBroker]:
    with pipeline_broker(plan, "local[2]") as broker:
        yield broker


def die(broker: PipelineBroker) -> None:
    """Its owner has not noticed yet."""
    os.kill(broker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)


def topics(broker: PipelineBroker) -> set[str]:
    client: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    return set(client.list_topics(timeout=60).topics)


def test_one_that_has_died_comes_back_with_its_data(
    broker: PipelineBroker, caplog: pytest.LogCaptureFixture
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    producer.produce("kept", b"x")
    assert producer.flush(60) == 0
    first, address = broker.pid, broker.bootstrap
    broker.revive(0)
    assert broker.pid == first
    with caplog.at_level(logging.WARNING, "onceflow.spark"):
        die(broker)
        broker.revive(0)
    assert "has ended; it is started again" in caplog.text
    assert broker.pid != first
    assert broker.bootstrap == address
    assert "kept" in topics(broker)


def test_one_that_dies_again_and_again_ends_the_pipeline(broker: PipelineBroker) -> None:
    for batches in (0, 1):
        die(broker)
        broker.revive(batches)
    die(broker)
    with pytest.raises(PipelineFailed, match="has ended again before a batch was committed"):
        broker.revive(1)


def test_a_watched_one_comes_back_by_itself_or_says_why_not(broker: PipelineBroker) -> None:
    first = broker.pid
    broker.watch(lambda: 0)
    os.kill(first, signal.SIGKILL)
    second = eventually(lambda: broker.pid, lambda pid: pid != first)
    assert topics(broker) == set()
    assert broker.failure is None
    os.kill(second, signal.SIGKILL)
    failure = eventually(lambda: broker.failure, lambda failure: failure is not None)
    assert "has ended again" in str(failure)


def test_what_a_terminal_sends_to_all_its_processes_does_not_end_it(broker: PipelineBroker) -> None:
    found = re.search(r"SigBlk:\s+(\w+)", Path(f"/proc/{broker.pid}/status").read_text())
    assert found is not None
    for each in (signal.SIGINT, signal.SIGHUP):
        assert int(found[1], 16) >> (each - 1) & 1


@pytest.mark.parametrize("master", ["spark://far:7077", "yarn", "k8s://https://far"])
def test_it_is_refused_where_executors_are_elsewhere(plan: PipelinePlan, master: str) -> None:
    refused = pytest.raises(MasterRefused, match=f"no source.bootstrap, and {master} is not this")
    with refused, pipeline_broker(plan, master):
        pass
