"""Commands that a signal ends: they leave their group and abort their transaction first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

import onceflow
from onceflow.blocking import Admin, Producer
from onceflow.types import TopicPartition
from tests.interop.harness import eventually

SECONDS: Final = 60.0
SOON_SECONDS: Final = 20.0
"""Less than the 45 seconds after which a group gives up a member that has not left."""


@pytest.fixture(scope="module")
def broker() -> Iterator[onceflow.Broker]:
    """Frozen by a test, and thawed again."""
    with onceflow.Broker(process=True) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("jobs", partitions=1)
        with Producer(broker.bootstrap) as producer:
            producer.send("jobs", b"first")
        yield broker


@contextmanager
def command(broker: onceflow.Broker, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "onceflow", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "ONCEFLOW_BOOTSTRAP": broker.bootstrap},
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate(timeout=SECONDS)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_consumer_commits_and_leaves_its_group(
    broker: onceflow.Broker, number: signal.Signals, status: int
) -> None:
    group = f"shop-{number.name}"
    with command(broker, "consume", "jobs", "--group", group) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"first\n"
        reader.send_signal(number)
        _, errors = reader.communicate(timeout=SOON_SECONDS)
        assert reader.returncode == status
        assert b"Traceback" not in errors
    with Admin(broker.bootstrap) as admin:
        assert admin.describe_group(group).members == ()
        assert admin.committed_offsets(group) == {TopicPartition("jobs", 0): 1}


def transaction_state(admin: Admin, name: str) -> Any:
    found = {each.transactional_id: each.state for each in admin.list_transactions()}
    return found.get(name)


def test_a_producer_aborts_its_transaction(broker: onceflow.Broker) -> None:
    name = "input"
    with command(broker, "produce", "jobs", "-t", name) as writer, Admin(broker.bootstrap) as admin:
        assert writer.stdin is not None
        writer.stdin.write(b"never seen\n")
        writer.stdin.flush()
        eventually(lambda: transaction_state(admin, name), lambda state: state == "Ongoing")
        writer.terminate()
        output, errors = writer.communicate(timeout=SOON_SECONDS)
        assert (writer.returncode, output) == (143, b"")
        assert b"the transaction was aborted: readers will see nothing of the input" in errors
        assert b"Traceback" not in errors
        assert transaction_state(admin, name) in ("CompleteAbort", "PrepareAbort")


def test_a_producer_says_what_it_has_sent(broker: onceflow.Broker) -> None:
    with (
        command(broker, "produce", "jobs") as writer,
        command(broker, "consume", "jobs", "--from", "latest") as reader,
    ):
        assert writer.stdin is not None
        assert reader.stdout is not None
        eventually(lambda: _sent_and_read(writer, reader), lambda line: line == b"again\n")
        writer.terminate()
        _, errors = writer.communicate(timeout=SOON_SECONDS)
        assert writer.returncode == 143
        assert b"sent before that, and not taken back: " in errors


def _sent_and_read(writer: subprocess.Popen[bytes], reader: subprocess.Popen[bytes]) -> bytes:
    """Sends until the reader, which may begin later, has something."""
    assert writer.stdin is not None
    assert reader.stdout is not None
    writer.stdin.write(b"again\n")
    writer.stdin.flush()
    os.set_blocking(reader.stdout.fileno(), False)
    return reader.stdout.readline() or b""


def test_a_second_signal_ends_it_at_once(broker: onceflow.Broker) -> None:
    with command(broker, "produce", "jobs", "-t", "stuck") as writer:
        assert writer.stdin is not None
        writer.stdin.write(b"never seen\n")
        writer.stdin.flush()
        with Admin(broker.bootstrap) as admin:
            eventually(lambda: transaction_state(admin, "stuck"), lambda state: state == "Ongoing")
        os.kill(broker.pid, signal.SIGSTOP)  # so that nothing can be aborted
        try:

            def has_ended() -> bool:
                writer.send_signal(signal.SIGINT)
                return writer.poll() is not None

            eventually(has_ended, lambda ended: ended)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert writer.returncode == 128 + signal.SIGINT


def test_nohup_is_respected(broker: onceflow.Broker) -> None:
    code = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, '-m', 'onceflow', *sys.argv[1:]])"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code, "consume", "jobs"],
        stdout=subprocess.PIPE,
        env={**os.environ, "ONCEFLOW_BOOTSTRAP": broker.bootstrap},
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == b"first\n"
        started.send_signal(signal.SIGHUP)
        started.terminate()
        assert started.wait(SOON_SECONDS) == 143
    finally:
        started.kill()
        started.communicate(timeout=SECONDS)


def test_a_hangup_stops_a_broker_in_an_orderly_way(tmp_path: Any) -> None:
    serve = ["serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    started = subprocess.Popen(
        [sys.executable, "-m", "onceflow", *serve], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdout is not None
    assert started.stdout.readline().startswith(b"listening on")
    started.send_signal(signal.SIGHUP)
    started.communicate(timeout=SECONDS)
    assert started.returncode == 0
