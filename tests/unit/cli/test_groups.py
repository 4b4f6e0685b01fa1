"""`onceflow consume --group` and `groups describe`: what members are told, and truthful lag."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import onceflow
from onceflow.blocking import Admin, Consumer, Producer
from onceflow.cli import run
from onceflow.types import TopicPartition

SECONDS = 60
P0 = TopicPartition("jobs", 0)


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with onceflow.Broker() as broker:
        with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
            admin.create_topic("jobs", partitions=1)
            for number in range(3):
                producer.send("jobs", b"%d" % number)
        monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", broker.bootstrap)
        yield broker.bootstrap


class Terminal:
    """A command in a terminal, and a person in front of it."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.shown = ""
        self._descriptor = descriptor

    def until(self, word: str) -> None:
        while word not in self.shown:
            self._read()

    def to_the_end(self) -> int:
        with suppress(OSError):  # nobody is at the other end any more
            while True:
                self._read()
        return self.process.wait(SECONDS)

    def _read(self) -> None:
        is_ready, _, _ = select.select([self._descriptor], [], [], SECONDS)
        assert is_ready, f"nothing more came behind {self.shown!r}"
        data = os.read(self._descriptor, 4096)
        if not data:
            raise OSError("the terminal was closed")
        self.shown += data.decode()


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "onceflow", *arguments], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def described(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert run(["groups", "describe", "shop", "--json", *options]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    row: dict[str, Any] = found["offsets"][0]
    return row


@pytest.mark.usefixtures("bootstrap")
def test_a_person_sees_what_comes_and_is_told_when_that_is_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with terminal("consume", "jobs", "--group", "shop") as shown:
        shown.until("waiting for more")
        shown.process.send_signal(signal.SIGINT)
        assert shown.to_the_end() == 130
    words = ["Joining group shop", "0\r\n1\r\n2\r\n", "End of the topic"]
    places = [shown.shown.index(word) for word in words]
    assert places == sorted(places)
    assert described(capsys)["committed"] == 3


def test_who_is_given_nothing_is_told_so(bootstrap: str) -> None:
    # Static members come first: the only partition stays where it is.
    settings = {"group.id": "shop", "group.instance.id": "first", "heartbeat.interval.ms": 200}
    is_over = threading.Event()

    def poll(holder: Consumer) -> None:
        while not is_over.is_set():
            holder.poll(0.05)

    with Consumer(bootstrap, settings) as holder, ThreadPoolExecutor(1) as pool:
        holder.subscribe(["jobs"])
        polling = pool.submit(poll, holder)
        try:
            while not holder.assignment:
                time.sleep(0.01)
            with terminal("consume", "jobs", "--group", "shop") as shown:
                shown.until("Other members of group shop have all partitions; waiting for one.")
                shown.process.send_signal(signal.SIGINT)
                assert shown.to_the_end() == 130
            assert "End of the topic" not in shown.shown
            command = ("consume", "jobs", "--group", "shop", "--exit-at-end")
            with terminal(*command) as shown:
                assert shown.to_the_end() == 0
            assert "other members of group shop have all partitions" in shown.shown
        finally:
            is_over.set()
            polling.result(SECONDS)


def test_lag_is_counted_or_estimated_and_what_is_open_is_told_apart(
    bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(bootstrap, transactional_id="id", linger_ms=0) as producer:
        with producer.transaction() as transaction:
            transaction.send("jobs", b"committed")
        with pytest.raises(KeyError):
            _sell_and_fail(producer)
        with Admin(bootstrap) as admin:
            admin.commit_offsets("shop", {P0: 1})
        found = described(capsys)
        # 1, 2, a record and its marker, an aborted one and its marker.
        assert (found["committed"], found["latest"]) == (1, 7)
        assert (found["lag"], found["lag_is_exact"], found["held_back"]) == (3, True, 0)
        producer.begin_transaction()
        producer.send("jobs", b"open").result()
        assert [described(capsys)[name] for name in ("lag", "held_back")] == [3, 1]
        monkeypatch.setattr("onceflow.client.COUNTED", 2)
        found = described(capsys)
        assert (found["lag"], found["lag_is_exact"]) == (6, False)
        assert run(["groups", "describe", "shop"]) == 0
        assert "lag ~6" in capsys.readouterr().out
        assert described(capsys, "--exact")["lag"] == 3
        producer.abort_transaction()


def _sell_and_fail(producer: Producer) -> None:
    with producer.transaction() as transaction:
        transaction.send("jobs", b"aborted").result()
        raise KeyError


@pytest.mark.usefixtures("bootstrap")
def test_a_group_without_commits_has_no_lag(capsys: pytest.CaptureFixture[str]) -> None:
    with Consumer(os.environ["ONCEFLOW_BOOTSTRAP"], group_id="shop") as member:
        member.subscribe(["jobs"])
        while not member.assignment:
            member.poll(0.1)
        assert run(["groups", "describe", "shop"]) == 0
    assert "nothing committed" in capsys.readouterr().out


def test_a_broker_that_goes_and_comes_back_is_told_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with onceflow.Broker(process=True) as broker:
        with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
            admin.create_topic("jobs", partitions=1)
            producer.send("jobs", b"before")
        place = ("--bootstrap", broker.bootstrap)
        with terminal("consume", "jobs", "--group", "shop", *place) as shown:
            shown.until("waiting for more")
            broker.kill()
            shown.until("trying again")
            broker.restart()
            shown.until("again\r\n")
            with Producer(broker.bootstrap) as producer:
                producer.send("jobs", b"after")
            shown.until("after\r\n")
            shown.process.send_signal(signal.SIGINT)
            assert shown.to_the_end() == 130
    assert shown.shown.count("trying again") == 1
    assert shown.shown.count("note:  \x1b[0mconnected to 127.0.0.1:") == 1
    assert capfd.readouterr().err == ""
