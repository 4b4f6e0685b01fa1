"""Apache Kafka's own command-line tools, against our broker as against theirs."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.java.tools import bench_of, benches
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = pytest.mark.interop

GROUPS = "consumer.group.ConsumerGroupCommand"
NO_IDEMPOTENCE = "enable.idempotence=false\n"
VOLATILE = (
    (re.compile(r"TopicId: \S+"), "TopicId: <id>"),
    (re.compile(r"\(\d+\)"), "(<node>)"),
    (re.compile(r"(Leader|Replicas|Isr): \d+"), r"\1: <node>"),
    (re.compile(r"(?:console-consumer|consumer)-\S*<uuid>"), "<member>"),
    (re.compile(r"[ \t]+"), " "),
)


@pytest.fixture(scope="module", autouse=True)
def _benches() -> Iterator[None]:
    with benches():
        yield


class Tools:
    """Runs tools against one broker; what they print comes back as lines, the unstable hidden."""

    def __init__(self, bootstrap: str, names: Names) -> None:
        self._bootstrap = bootstrap
        self._names = names
        self._bench = bench_of(bootstrap)

    def run(self, tool: str, *arguments: str, text: str = "", fails: bool = False) -> list[str]:
        """The lines of a tool that must succeed (or fail)."""
        kind = tool if tool.startswith("kafka.") else f"org.apache.kafka.tools.{tool}"
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as properties:
            properties.write(NO_IDEMPOTENCE)
            properties.flush()
            given = [each.replace("@properties", properties.name) for each in arguments]
            done = self._bench.run(kind, "--bootstrap-server", self._bootstrap, *given, text=text)
        assert (done.status != 0) == fails, f"{kind} {given}\n{done.said}{done.complained}"
        return [line for each in done.said.splitlines() if (line := self._stable(each))]

    def _stable(self, line: str) -> str:
        line = str(self._names.hide(line))
        for pattern, replacement in VOLATILE:
            line = pattern.sub(replacement, line)
        return line.strip()

    def events(self, tool: str, *arguments: str) -> list[dict[str, Any]]:
        """What the verifiable tools print: one JSON object a line."""
        return [json.loads(line) for line in self.run(tool, *arguments)]


def first_error(lines: list[str]) -> str:
    """The name of the exception that a tool ends with, or else what it says."""
    found = re.search(r"\b(\w+Exception)\b", " ".join(lines))
    return found[1] if found else "\n".join(lines)


def topics(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """TopicCommand and ConfigCommand: create, list, describe, alter, delete, and refusals."""
    tools, topic = Tools(bootstrap, names), names("topic")
    name = ("--topic", topic)
    made = ("--partitions", "3", "--config", "retention.ms=60000")
    transcript.note("create", tools.run("TopicCommand", "--create", *name, *made))
    again = tools.run("TopicCommand", "--create", *name, fails=True)
    transcript.note("create again", first_error(again))
    assert "already exists" in again[-1]
    config = ("--entity-type", "topics", "--entity-name", topic)
    change = ("--alter", "--add-config", "max.message.bytes=5000", "--delete-config")
    changed = tools.run("kafka.admin.ConfigCommand", *config, *change, "retention.ms")
    transcript.note("alter configs", changed)
    described = tools.run("kafka.admin.ConfigCommand", *config, "--describe")
    transcript.note("describe configs", sorted(described))
    assert any("max.message.bytes=5000" in line for line in described)
    grown = tools.run("TopicCommand", "--alter", *name, "--partitions", "4")
    transcript.note("add a partition", grown)
    described = tools.run("TopicCommand", "--describe", *name)
    transcript.note("describe", described[0].partition(" Configs:")[0])
    transcript.note("describe partitions", described[1:])
    assert len(described) == 5
    listed = tools.run("TopicCommand", "--list")
    assert "topic" in listed
    transcript.note("delete", tools.run("TopicCommand", "--delete", *name))
    absent = tools.run("TopicCommand", "--describe", "--topic", names("absent"), fails=True)
    transcript.note("describe an absent one", first_error(absent))


def records(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """VerifiableProducer, ConsoleProducer, ConsoleConsumer, GetOffsetShell, VerifiableConsumer."""
    tools, topic = Tools(bootstrap, names), ready_topic(names, partitions=1)
    name, config = ("--topic", topic), ("--command-config", "@properties")
    limits = ("--max-messages", "200", "--acks", "-1")
    events = tools.events("VerifiableProducer", *name, *limits, *config)
    transcript.note("produced", dict(Counter(event["name"] for event in events)))
    acked = [event["offset"] for event in events if event["name"] == "producer_send_success"]
    assert sorted(acked) == list(range(200))
    separated = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    lines = tools.run("ConsoleProducer", *name, *separated, *config, text="a:1\nb:2\n")
    transcript.note("typed in", [line.strip(">") for line in lines if line.strip(">")])
    ends = tools.run("GetOffsetShell", *name, "--time", "-1")
    transcript.note("end", ends)
    assert ends == ["topic:0:202"]
    shown = [f"print.{what}=true" for what in ("key", "offset", "partition")]
    options = [word for each in shown for word in ("--formatter-property", each)]
    start = ("--partition", "0", "--offset", "198", "--max-messages", "4", "--timeout-ms", "15000")
    lines = tools.run("consumer.ConsoleConsumer", *name, *start, *options)
    transcript.note("read", lines)
    assert lines[-1] == "Partition:0 Offset:201 b 2"
    options = ["--group-id", names("group"), "--max-messages", "202", "--reset-policy", "earliest"]
    events = tools.events("VerifiableConsumer", *name, *options)
    consumed = [event for event in events if event["name"] == "records_consumed"]
    assert sum(event["count"] for event in consumed) == 202
    committed = [event["offsets"] for event in events if event["name"] == "offsets_committed"]
    transcript.note("last commit", committed[-1])
    transcript.note("consumer's events", sorted({event["name"] for event in events}))


def performance(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """ProducerPerformance and ConsumerPerformance count what they were told to send and read."""
    tools, topic = Tools(bootstrap, names), ready_topic(names, partitions=4)
    name, config = ("--topic", topic), ("--command-config", "@properties")
    load = ("--num-records", "20000", "--record-size", "1000", "--throughput", "-1")
    lines = tools.run("ProducerPerformance", *name, *load, *config)
    transcript.note("sent", lines[-1].split(" sent,")[0])
    assert lines[-1].startswith("20000 records sent,")
    lines = tools.run("ConsumerPerformance", *name, "--num-records", "20000")
    rows = [line.split(", ") for line in lines if re.match(r"\d{4}-", line)]
    transcript.note("read", [row[4] for row in rows])
    assert [row[4] for row in rows] == ["20000"]


def groups(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """ConsumerGroupCommand: list, describe, reset, delete offsets, delete; refusals included."""
    tools, topic, group = Tools(bootstrap, names), ready_topic(names, partitions=2), names("group")
    typed = "".join(f"{number}\n" for number in range(10))
    config = ("--command-config", "@properties")
    tools.run("ConsoleProducer", "--topic", topic, *config, text=typed)
    read = ("--from-beginning", "--max-messages", "10", "--timeout-ms", "20000")
    lines = tools.run("consumer.ConsoleConsumer", "--topic", topic, "--group", group, *read)
    assert sorted(lines) == sorted(typed.split())
    assert "group" in tools.run(GROUPS, "--list")
    described = tools.run(GROUPS, "--describe", "--group", group)
    transcript.note("describe", [described[0], sorted(row.split()[2] for row in described[1:])])
    lag = [row.split()[5] for row in described[1:] if row.startswith("group ")]
    assert set(lag) == {"0"}
    transcript.note("state", tools.run(GROUPS, "--describe", "--group", group, "--state"))
    back = ("--reset-offsets", "--to-earliest", "--all-topics", "--execute")
    transcript.note("reset", sorted(tools.run(GROUPS, "--group", group, *back)))
    offset = ("--delete-offsets", "--topic", topic, "--group", group)
    transcript.note("delete offsets", sorted(tools.run(GROUPS, *offset)))
    transcript.note("delete", tools.run(GROUPS, "--delete", "--group", group))
    transcript.note("delete again", first_error(tools.run(GROUPS, "--delete", "--group", group)))


SCRIPTS: tuple[Script, ...] = (topics, records, performance, groups)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_java_tools(script: Script, compare: Compare, kafka_jars: Path) -> None:
    assert kafka_jars.is_dir()
    compare(script)
