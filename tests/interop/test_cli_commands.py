"""Every command for daily work, as a person runs it, on every broker there is to compare."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.interop.harness import Names, eventually

pytestmark = pytest.mark.interop
SECONDS = 60


class Cli:
    """`onceflow` in a process of its own, on one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.names = Names.fresh(bootstrap)
        self.environment = {**os.environ, "ONCEFLOW_BOOTSTRAP": bootstrap}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "onceflow", *arguments]

    def run(self, *arguments: str, given: str | bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.command(*arguments),
            input=given.encode() if isinstance(given, str) else given,
            capture_output=True,
            env=self.environment,
            timeout=SECONDS,
            check=False,
        )

    def text(self, *arguments: str, given: str | bytes = b"") -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def json(self, *arguments: str, given: str | bytes = b"") -> Any:
        return json.loads(self.text(*arguments, "--json", given=given))

    def json_lines(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.text(*arguments, "--json").splitlines()]

    def refused(self, *arguments: str, given: str | bytes = b"") -> dict[str, Any]:
        """The error of a command that must fail."""
        done = self.run(*arguments, "--json", given=given)
        assert done.returncode == 1, done.stdout.decode()
        error: dict[str, Any] = json.loads(done.stderr)["error"]
        return error

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )


@pytest.fixture
def clis(brokers: dict[str, str]) -> list[Cli]:
    return [Cli(bootstrap) for bootstrap in brokers.values()]


def test_topics_from_first_to_last(clis: list[Cli]) -> None:
    for cli in clis:
        topic = cli.names("orders")
        made = cli.json("topics", "create", topic, "-p", "2", "-c", "retention.ms=60000")
        assert (made["created"], made["partitions"], made["topic"]) == (True, 2, topic)
        assert cli.json("topics", "create", topic, "--if-not-exists")["created"] is False
        assert topic in [each["topic"] for each in cli.json("topics", "list")]
        assert topic in cli.text("topics", "list")

        (found,) = cli.json("topics", "describe", topic)
        assert found["topic_id"] == made["topic_id"]
        assert found["configs"] == {"retention.ms": "60000"}
        assert [each["partition"] for each in found["partitions"]] == [0, 1]
        assert {(each["earliest"], each["latest"]) for each in found["partitions"]} == {(0, 0)}
        (everything,) = cli.json("topics", "describe", topic, "--all-configs")
        assert everything["configs"].keys() > {"retention.ms", "segment.bytes", "cleanup.policy"}

        change = ("-c", "segment.bytes=2000000", "--delete-config", "retention.ms", "-p", "3")
        altered = cli.json("topics", "alter", topic, *change)
        assert altered["configs"] == {"segment.bytes": "2000000"}
        assert len(altered["partitions"]) == 3
        assert "segment.bytes  2000000  topic" in cli.text("topics", "describe", topic)

        assert cli.json("topics", "delete", topic) == {"deleted": [topic]}
        assert topic not in cli.text("topics", "list", "--internal")


def test_what_is_wrong_with_a_topic_is_told_in_words(clis: list[Cli]) -> None:
    for cli in clis:
        topic, near = cli.names("orders"), cli.names("ordres")
        cli.text("topics", "create", topic)
        for command in (("describe",), ("alter", "-p", "9"), ("delete",)):
            error = cli.refused("topics", *command, near)
            assert error["type"] == "TopicNotFound"
            assert f"did you mean '{topic}'?" in error["message"]
            assert "onceflow topics list" in error["hint"]
        assert cli.refused("produce", near, given='{"value": "x"}')["type"] == "TopicNotFound"
        assert cli.refused("consume", near, "-e")["type"] == "TopicNotFound"
        assert near not in cli.text("topics", "list")  # asking makes no topic

        assert cli.refused("topics", "create", topic)["name"] == "TOPIC_ALREADY_EXISTS"
        assert cli.refused("topics", "create", "a b")["name"] == "INVALID_TOPIC_EXCEPTION"
        wrong = cli.refused("topics", "alter", topic, "-c", "retention.ms=soon")
        assert wrong["name"] == "INVALID_CONFIG"
        assert "retention.ms" in wrong["message"]
        assert "soon" in wrong["message"]
        unknown = cli.refused("topics", "create", cli.names("x"), "-c", "no.such.setting=1")
        assert unknown["name"] == "INVALID_CONFIG"
        assert cli.refused("topics", "alter", topic, "-p", "1")["name"] == "INVALID_PARTITIONS"
        assert cli.refused("consume", topic, "-e", "-p", "7")["type"] == "NoSuchPartition"


def test_lines_go_in_and_come_out(clis: list[Cli], tmp_path: Path) -> None:
    for cli in clis:
        topic = cli.names("lines")
        cli.text("topics", "create", topic)
        assert "sent 3 records" in cli.text("produce", topic, given="one\n\nthree")
        assert cli.text("consume", topic, "-e") == "one\n\nthree\n"
        file = tmp_path / "more"
        file.write_bytes(b"a=\xff\xfe\r\nb=2\n")
        sent = cli.json_out("produce", topic, "-k", "=", "-H", "source=file", "--file", str(file)) \
            if False else cli.text("produce", topic, "-k", "=", "-H", "s=f", "--file", str(file))
        assert "offsets 3 to 4" in sent
        raw = cli.run("consume", topic, "-e", "--from", "3", "--format", r"{key}\t{value}\t{headers}")
        assert raw.stdout == b"a\t\xff\xfe\ts=f\nb\t2\ts=f\n"
        assert "empty" in cli.text("produce", topic)
