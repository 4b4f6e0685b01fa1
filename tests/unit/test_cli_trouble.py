"""Commands whose broker is stuck, goes away or refuses: told in words, and in time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onceflow
from onceflow.cli import run

SECONDS = 60
IMPATIENT = ("request.timeout.ms=1000", "delivery.timeout.ms=1500")


@pytest.fixture(scope="module")
def broker() -> Iterator[onceflow.Broker]:
    """Killed by a test, and started again."""
    with onceflow.Broker(process=True) as broker:
        yield broker


def start(broker: onceflow.Broker, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "onceflow", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "ONCEFLOW_BOOTSTRAP": broker.bootstrap},
    )


def error_of(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert run([*arguments, "--json"]) == 1
    told: dict[str, str] = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]
    return told


@pytest.mark.parametrize(
    "command", [("topics", "list"), ("consume", "t", "-e"), ("produce", "t", "-f", os.devnull)]
)
def test_somebody_who_never_answers_is_not_waited_for_longer_than_was_said(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        chosen = ("--set", "socket.connection.setup.timeout.ms=200")
        told = error_of(*command, "--bootstrap", address, *chosen, capsys=capsys)
    assert f"{address} accepts connections and does not answer" in told["message"]
    assert "hint" in told


def test_a_setting_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = error_of("topics", "list", "--set", "request.timeout=5", capsys=capsys)
    assert "did you mean 'request.timeout.ms'" in told["message"]
    told = error_of("topics", "list", "--set", "request.timeout.ms=soon", capsys=capsys)
    assert "request.timeout.ms = 'soon' is not allowed" in told["message"]
    told = error_of("consume", "t", "--set", "linger.ms=5", capsys=capsys)
    assert "there is no setting 'linger.ms' here" in told["message"]


def test_a_broker_that_dies_is_told_with_what_was_sent(broker: onceflow.Broker) -> None:
    assert run(["topics", "create", "orders", "--bootstrap", broker.bootstrap]) == 0
    chosen = [word for each in IMPATIENT for word in ("--set", each)]
    reader = start(broker, "consume", "orders", "--set", "default.api.timeout.ms=1000")
    writer = start(broker, "produce", "orders", *chosen)
    assert writer.stdin is not None
    assert reader.stdout is not None
    writer.stdin.write(b"first\n")
    writer.stdin.flush()
    assert reader.stdout.readline() == b"first\n"
    broker.kill()
    _, errors = reader.communicate(timeout=SECONDS)
    assert reader.returncode == 1
    assert b"error: " in errors
    assert b"hint:  start a broker" in errors
    _, errors = writer.communicate(b"second\n", timeout=SECONDS)
    assert writer.returncode == 1
    assert b"1 record for orders-0 was not acknowledged within delivery.timeout.ms, 1.5 s" in errors
    assert b"note:  sent before that, and not taken back: 1 record" in errors
    broker.restart()


def test_what_the_topic_refuses_is_told_with_what_to_do(
    broker: onceflow.Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    create = ["topics", "create", "small", "-c", "max.message.bytes=1000"]
    assert run([*create, "--bootstrap", broker.bootstrap]) == 0
    lines = tmp_path / "lines"
    lines.write_text(json.dumps({"value": "x" * 5000}))
    produce = ("produce", "small", "-f", str(lines))
    told = error_of(*produce, "--bootstrap", broker.bootstrap, capsys=capsys)
    assert (told["type"], told["name"]) == ("DeliveryFailed", "MESSAGE_TOO_LARGE")
    assert told["outcome"] == "not applied"
    assert "max.message.bytes" in told["hint"]
