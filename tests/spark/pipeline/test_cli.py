"""`onceflow run` as a person runs it: an example with a broker of its own, killed with its broker,
started again, and stopped by the end of its terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from functools import partial
from pathlib import Path

import pytest

import onceflow
from onceflow.cli import run as run_command
from tests.interop.harness import eventually
from tests.spark.kills.judge import topic_offsets
from tests.spark.pipeline.examples import EXAMPLES
from tests.spark.pipeline.judge import judge_example
from tests.spark.pipeline.run import LOCAL, running
from tests.spark.pipeline.world import example

SIGKILL = -9


def answers(bootstrap: str) -> bool:
    host, port = bootstrap.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_pipeline_is_killed_started_again_and_stopped(
    spark_is_there: None, tmp_path: Path
) -> None:
    path, generate = example("order_totals", tmp_path)
    text = path.read_text().replace("[broker]\n", '[broker]\nlisten = "127.0.0.1:0"\n')
    path.write_text(text)
    with running(path, *LOCAL) as (run, bootstrap):
        asyncio.run(generate.send(bootstrap, 300))
        line = run.until_read(300)
        assert (line["read"], line["lag"], line["dead_letters"]) == (300, 0, 12)
        asyncio.run(generate.send(bootstrap, 200))
        os.kill(run.pid, signal.SIGKILL)
        assert run.end()[0] == SIGKILL
    # Nobody but the killed one knew of its broker: it has to see for itself that it is not needed.
    eventually(lambda: answers(bootstrap), lambda answers: not answers)
    with running(path, *LOCAL) as (run, bootstrap):
        asyncio.run(generate.send(bootstrap, 100))
        # Nobody knows how many of the 200 the killed one has done.
        ends = partial(topic_offsets, bootstrap, "order-totals", "orders")
        eventually(ends, lambda found: sum(found.values()) == 600)
        run.signal(signal.SIGHUP, to_all=True)
        status, last = run.end()
        assert (status, last["state"]) == (0, "ended"), run.said
    assert not answers(bootstrap)
    with onceflow.Broker(process=True, data_dir=path.parent / "state/broker") as broker:
        checkpoint = path.parent / "state/order-totals"
        assert judge_example(EXAMPLES["order_totals"], broker.bootstrap, checkpoint) == []
    assert (tmp_path / "order_totals/state/order-totals.log").exists()


def test_a_broker_beside_it_is_refused_for_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = example("order_totals", tmp_path)
    assert run_command(["run", str(path), "--master", "spark://far:7077"]) == 1
    said = capsys.readouterr().err
    assert "there is no source.bootstrap, and spark://far:7077 is not this machine" in said
    assert "Give the address of one that executors reach" in said
    assert not (path.parent / "state").exists()
