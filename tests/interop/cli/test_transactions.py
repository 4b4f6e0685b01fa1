"""Inputs that are one transaction, and transactions as operators see them, by the commands; on
every broker that is compared."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.cli.cli_runner import SECONDS, Cli
from tests.interop.harness import BROKERS, eventually

pytestmark = pytest.mark.interop
YES: dict[str, tuple[str, ...]] = {"describe": (), "abort": ("--yes",)}


@pytest.fixture(params=BROKERS)
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> Cli:
    return Cli(request.getfixturevalue(request.param), tmp_path)


def values(cli: Cli, topic: str, *arguments: str) -> list[str]:
    return cli.text("consume", topic, "-e", *arguments).splitlines()


def test_an_input_is_one_transaction(cli: Cli) -> None:
    topic, name = cli.names("orders"), cli.names("shop")
    cli.text("topics", "create", topic, "-p", "3")
    lines = b"".join(b"%d\n" % number for number in range(1000))
    assert "committed 1,000 records to" in cli.produce(topic, lines, "-t", name)
    sent = json.loads(cli.produce(topic, b'{"value": "last"}', "--json", "-t", name))
    assert (sent["transactional_id"], sent["records"]) == (name, 1)
    assert sorted(values(cli, topic)) == sorted([*map(str, range(1000)), "last"])
    assert "The input is empty" in cli.produce(topic, b"", "-t", name)
    (found,) = cli.json("transactions", "describe", name)
    assert (found["transactional_id"], found["partitions"]) == (name, [])


def test_an_input_with_a_mistake_in_it_is_not_seen(cli: Cli, tmp_path: Path) -> None:
    topic, name = cli.names("orders"), cli.names("shop")
    cli.text("topics", "create", topic)
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"a=1\nb\nc=3\n")
    produce = ("produce", topic, "--file", str(wrong), "-k", "=")
    done = cli.run(*produce, "-t", name)
    assert done.status == 1
    assert (
        "error: line 2 of the input cannot be sent: it does not contain the key separator"
        in done.errors
    )
    assert (
        "note:  the transaction was aborted: readers will see nothing of the input" in done.errors
    )
    assert values(cli, topic) == []
    done = cli.run(*produce)
    assert "note:  sent before that, and not taken back: 1 record" in done.errors
    assert values(cli, topic) == ["1"]


def test_an_interrupted_input_is_not_seen(cli: Cli) -> None:
    topic, name = cli.names("chat"), cli.names("shop")
    cli.text("topics", "create", topic)
    writer = cli.start("produce", topic, "--transactional-id", name, "--json")
    assert writer.stdin is not None
    writer.stdin.write(b'{"value": "never mind"}\n')
    writer.stdin.flush()
    uncommitted = ("--isolation", "read_uncommitted")
    eventually(lambda: values(cli, topic, *uncommitted), lambda read: read == ["never mind"])
    done = cli.run("consume", topic, "-e")
    assert (done.status, done.output) == (0, b"")
    assert "1 offset at the end of 1 partition wait for transactions" in done.errors
    writer.send_signal(signal.SIGINT)
    output, errors = writer.communicate(timeout=SECONDS)
    assert (writer.returncode, output) == (130, b"")
    assert "readers will see nothing of the input" in json.loads(errors)["note"]
    cli.produce(topic, b"after", "-t", name)
    assert values(cli, topic) == ["after"]
    assert values(cli, topic, *uncommitted) == ["never mind", "after"]


def open_transaction(cli: Cli, topic: str, name: str) -> subprocess.Popen[bytes]:
    """By a producer that waits for more input."""
    writer = cli.start("produce", topic, "-t", name)
    assert writer.stdin is not None
    writer.stdin.write(b"open\n")
    writer.stdin.flush()

    def partitions() -> list[Any]:
        done = cli.run("transactions", "describe", name, "--json")
        return list(json.loads(done.output)[0]["partitions"]) if done.status == 0 else []

    eventually(partitions, bool)
    return writer


def test_an_open_transaction_is_shown_and_aborted(cli: Cli) -> None:
    topic, name = cli.names("orders"), cli.names("shop")
    cli.text("topics", "create", topic)
    writer = open_transaction(cli, topic, name)
    listed = cli.json("transactions", "list", "--state", "Ongoing")
    assert name in [each["transactional_id"] for each in listed]
    assert name in cli.text("transactions", "list")
    assert cli.json("transactions", "list", "--longer-than", "3600") == []
    (found,) = cli.json("transactions", "describe", name)
    assert (found["state"], found["timeout_ms"]) == ("Ongoing", 60_000)
    assert found["partitions"] == [{"topic": topic, "partition": 0}]
    assert f"{name}  Ongoing  open for " in cli.text("transactions", "describe", name)
    said = cli.text("transactions", "find-hanging", "--topic", topic, "--longest-timeout", "0")
    assert said == "No hanging transactions in 1 partition.\n"
    place = ("--topic", topic, "--partition", "0", "--start-offset")
    assert cli.refused("transactions", "abort", *place, "0", "--yes")["type"] == "NotHanging"
    gone = cli.refused("transactions", "abort", *place, "7", "--yes")
    assert gone["type"] == "TransactionNotFound"
    for wrong in ((name, *place, "0"), (), (name, "--topic", topic), place[:4]):
        assert cli.run("transactions", "abort", *wrong, "--yes").status == 2
    aborted = cli.json("transactions", "abort", name, "--yes")
    assert aborted["aborted"]["transactional_id"] == name
    output, errors = writer.communicate(b"more\n", timeout=SECONDS)
    assert (writer.returncode, output) == (1, b"")
    assert b"error: " in errors
    assert values(cli, topic) == []
    again = cli.refused("transactions", "abort", name, "--yes")
    assert "no transaction that could be aborted: it is " in again["message"]
    for command in ("describe", "abort"):
        error = cli.refused("transactions", command, cli.names("nobody"), *YES[command])
        assert error["type"] == "TransactionNotFound"
        assert "onceflow transactions list" in error["hint"]


def test_a_transaction_that_hangs_is_found_and_aborted(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(*_: Any) -> dict[str, Any]:
        return {}  # as if no coordinator knew of it

    topic, name = cli.names("orders"), cli.names("shop")
    cli.text("topics", "create", topic)
    cli.produce(topic, b"before")
    writer = open_transaction(cli, topic, name)
    monkeypatch.setattr("onceflow.client.admin.transactions.describe_transactions", nobody)
    find = ("transactions", "find-hanging", "--topic", f"{topic}:0")
    assert cli.json(*find) == []  # too young
    (found,) = cli.json(*find, "--longest-timeout", "0")
    assert (found["topic"], found["partition"], found["start_offset"]) == (topic, 0, 1)
    assert found["transactional_id"] == name
    assert name in cli.text(*find, "--longest-timeout", "0")
    place = ("--topic", topic, "--partition", "0", "--start-offset", "1")
    aborted = cli.json("transactions", "abort", *place, "--yes")
    assert aborted == {"aborted": found}
    cli.produce(topic, b"after")
    assert values(cli, topic) == ["before", "after"]
    assert values(cli, topic, "--isolation", "read_uncommitted") == ["before", "open", "after"]
    writer.kill()
    writer.communicate()
