"""Commands whose broker is stuck, goes away or refuses: told in words, and in time."""

from __future__ import annotations

import json
import os
import signal
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
    assert "unknown setting 'linger.ms'" in told["message"]


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
    assert b"line 2 of the input was " in errors
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


def test_the_line_that_was_refused_is_named_and_what_was_sent_is_told(
    broker: onceflow.Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    at = ("--bootstrap", broker.bootstrap)
    assert run(["topics", "create", "tiny", "-c", "max.message.bytes=1000", *at]) == 0
    lines = tmp_path / "lines"
    lines.write_text("\n".join(["one", "two", "x" * 5000, "four"]))
    capsys.readouterr()
    assert run(["produce", "tiny", "-f", str(lines), *at]) == 1
    said = capsys.readouterr().err
    assert "error: line 3 of the input was refused: partition tiny-0: the batch has" in said
    assert "note:  acknowledged, and not taken back: 3 records, the last of them line 4" in said
    assert run(["produce", "tiny", "-f", str(lines), "-t", "tiny-input", *at]) == 1
    said = capsys.readouterr().err
    assert "error: line 3 of the input was refused: " in said
    assert "note:  the transaction was aborted: readers will see nothing of the input" in said


def test_a_record_of_a_refused_batch_is_named_by_its_line(
    broker: onceflow.Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    at = ("--bootstrap", broker.bootstrap)
    assert run(["topics", "create", "table", "-c", "cleanup.policy=compact", *at]) == 0
    lines = tmp_path / "lines"
    lines.write_text('{"key": "a", "value": "1"}\n{"value": "2"}\n{"key": "c", "value": "3"}\n')
    told = error_of("produce", "table", "-f", str(lines), *at, capsys=capsys)
    assert told["message"].startswith("lines 1 to 3 of the input were refused: partition table-0: ")
    assert "line 2: table is compacted and takes no record without a key" in told["message"]
    assert told["name"] == "INVALID_RECORD"


def test_a_line_that_the_client_refuses_is_named(
    broker: onceflow.Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    at = ("--bootstrap", broker.bootstrap)
    assert run(["topics", "create", "heads", *at]) == 0
    lines = tmp_path / "lines"
    lines.write_text('{"value": "1"}\n{"value": "2", "headers": [{"key": "\\ud800"}]}\n')
    capsys.readouterr()
    assert run(["produce", "heads", "--json", "-f", str(lines), *at]) == 1
    note, error = map(json.loads, capsys.readouterr().err.splitlines())
    assert note == {"note": "sent before that, and not taken back: 1 record"}
    assert "line 2 of the input cannot be sent: the key of a header" in error["error"]["message"]


def test_records_whose_fate_is_unknown_are_named(broker: onceflow.Broker) -> None:
    assert run(["topics", "create", "fates", "--bootstrap", broker.bootstrap]) == 0
    chosen = [word for each in IMPATIENT for word in ("--set", each)]
    reader = start(broker, "consume", "fates")
    writer = start(broker, "produce", "fates", *chosen)
    assert writer.stdin is not None
    assert reader.stdout is not None
    writer.stdin.write(b"first\n")
    writer.stdin.flush()
    assert reader.stdout.readline() == b"first\n"
    reader.terminate()
    reader.communicate(timeout=SECONDS)
    os.kill(broker.pid, signal.SIGSTOP)  # it may have read what it does not answer
    try:
        _, errors = writer.communicate(b"second\nthird\n", timeout=SECONDS)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert writer.returncode == 1
    assert b"error: lines 2 to 3 of the input were not acknowledged: " in errors
    assert b"note:  sent before that, and not taken back: 1 record" in errors
    assert b"note:  lines 2 to 3 may have been written: no answer came" in errors
