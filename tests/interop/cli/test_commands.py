"""Every command for daily work, end to end, on every broker that is compared."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.interop.cli.cli_runner import KEEP, SECONDS, Cli
from tests.interop.harness import BROKERS, eventually

pytestmark = pytest.mark.interop


@pytest.fixture(params=BROKERS)
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> Cli:
    return Cli(request.getfixturevalue(request.param), tmp_path)


def test_topics_from_first_to_last(cli: Cli) -> None:
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

    assert cli.json("topics", "delete", topic, "--yes") == {"deleted": [topic]}
    assert topic not in cli.text("topics", "list", "--internal")


def test_a_missing_topic_is_told_with_the_one_that_was_meant(cli: Cli) -> None:
    topic, near = cli.names("orders"), cli.names("ordres")
    cli.text("topics", "create", topic)
    for command in (
        ("topics", "describe", near),
        ("topics", "alter", near, "-p", "9"),
        ("topics", "delete", near, "--yes"),
        ("produce", near, "--file", os.devnull),
        ("consume", near, "-e"),
    ):
        error = cli.refused(*command)
        assert error["type"] == "TopicNotFound"
        assert f"did you mean '{topic}'" in error["message"]
        assert "onceflow topics list" in error["hint"]
    assert near not in cli.text("topics", "list")  # asking makes no topic


def test_what_a_broker_refuses_is_told_in_words(cli: Cli) -> None:
    topic = cli.names("orders")
    cli.text("topics", "create", topic)
    assert cli.refused("topics", "create", topic)["name"] == "TOPIC_ALREADY_EXISTS"
    assert cli.refused("topics", "create", "a b")["name"] == "INVALID_TOPIC_EXCEPTION"
    wrong = cli.refused("topics", "alter", topic, "-c", "retention.ms=soon")
    assert wrong["name"] == "INVALID_CONFIG"
    assert "soon for configuration retention.ms" in wrong["message"]
    unknown = cli.refused("topics", "create", cli.names("x"), "-c", "no.such.setting=1")
    assert unknown["name"] == "INVALID_CONFIG"
    assert cli.refused("topics", "alter", topic, "-p", "1")["name"] == "INVALID_PARTITIONS"
    assert cli.refused("consume", topic, "-e", "-p", "7")["type"] == "NoSuchPartition"


def test_lines_go_in_and_come_out(cli: Cli) -> None:
    topic = cli.names("lines")
    cli.text("topics", "create", topic)
    assert "sent 3 records" in cli.produce(topic, b"one\n\nthree")
    assert cli.text("consume", topic, "-e") == "one\n\nthree\n"
    sent = cli.produce(topic, b"a=\xff\xfe\r\nb=2\n", "-k", "=", "-H", "source=file")
    assert "offsets 3 to 4" in sent
    template = r"{partition}/{offset}\t{key}\t{value}\t{headers}"
    done = cli.run("consume", topic, "-e", "--from", "3", "--format", template)
    assert done.output == b"0/3\ta\t\xff\xfe\tsource=file\n0/4\tb\t2\tsource=file\n"
    assert "nothing was sent" in cli.produce(topic, b"")
    failed = cli.run("consume", topic, "-e", "--from", "99")
    assert (failed.status, failed.output) == (0, b"")
    assert "holds the offsets from 0 up to 5; reading it from 5" in failed.errors


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_json_lines_survive_a_copy_whatever_the_codec(cli: Cli, codec: str) -> None:
    topic, copy = cli.names("original"), cli.names("copy")
    for name in (topic, copy):
        cli.text("topics", "create", name, "-p", "3", *KEEP)
    records = [
        {
            "key": f"key-{number}",
            "value": f"välue {number}",
            "timestamp": 1_700_000_000_000 + number,
        }
        for number in range(50)
    ]
    records.append({"key": None, "value": {"base64": "/wA="}, "headers": [{"key": "h"}]})
    records.append({"key": {"base64": "/w=="}, "value": None})
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in records)
    sent = json.loads(cli.produce(topic, lines, "--json", "--compression", codec))
    assert sent["records"] == 52
    found = cli.consume(topic)
    cli.produce(copy, b"".join(json.dumps(each).encode() + b"\n" for each in found), "--json")
    copied = cli.consume(copy)

    def facts(read: list[Any]) -> list[str]:
        wanted = ("key", "value", "headers", "timestamp")
        return sorted(json.dumps([each[name] for name in wanted]) for each in read)

    assert facts(copied) == facts(found)
    assert {each["value"] for each in found if isinstance(each["value"], str)} == {
        each["value"] for each in records if isinstance(each["value"], str)
    }


def test_other_clients_read_what_is_produced_and_write_what_is_consumed(cli: Cli) -> None:
    topic = cli.names("shared")
    cli.text("topics", "create", topic, "-p", "8")
    keys = [b"key-%d" % number for number in range(40)]
    cli.produce(topic, b"".join(key + b":v\n" for key in keys), "-k", ":")
    ours = {each["key"]: each["partition"] for each in cli.consume(topic)}
    producer = Producer({"bootstrap.servers": cli.bootstrap, "partitioner": "murmur2_random"})
    theirs: dict[str, int] = {}

    def delivered(_: Any, message: Any) -> None:
        theirs[message.key().decode()] = message.partition()

    for key in keys:
        producer.produce(topic, b"from librdkafka", key, on_delivery=delivered)
    assert producer.flush(SECONDS) == 0
    assert theirs == ours  # the same key, the same partition
    assert sum(each["value"] == "from librdkafka" for each in cli.consume(topic)) == 40


def test_reading_from_a_time_on(cli: Cli) -> None:
    topic = cli.names("times")
    cli.text("topics", "create", topic, *KEEP)
    for second in range(5):
        line = {"value": f"at {second}", "timestamp": 1_700_000_000_000 + 1000 * second}
        cli.produce(topic, json.dumps(line).encode(), "--json")
    read = ("consume", topic, "-e", "--from")
    assert cli.text(*read, "2023-11-14T22:13:23Z") == "at 3\nat 4\n"
    assert cli.text(*read, "@1700000001500", "--max", "1") == "at 2\n"
    assert cli.text(*read, "2099-01-01") == ""
    assert cli.text(*read, "latest") == ""


def test_a_group_goes_on_where_it_was_and_can_be_moved(cli: Cli) -> None:
    topic, group = cli.names("jobs"), cli.names("workers")
    cli.text("topics", "create", topic)
    cli.produce(topic, b"".join(b"%d\n" % number for number in range(10)))
    read = ("consume", topic, "-e", "--group", group)
    assert cli.text(*read, "--max", "4") == "0\n1\n2\n3\n"
    assert cli.text(*read) == "4\n5\n6\n7\n8\n9\n"
    assert cli.text(*read) == ""
    assert group in [each["group"] for each in cli.json("groups", "list")]

    reset = ("groups", "reset-offsets", group)
    planned = cli.json(*reset, "--shift", "-3")
    move = {"topic": topic, "partition": 0, "current": 10, "new": 7}
    assert planned == {"group": group, "executed": False, "offsets": [move]}
    assert cli.text(*read) == ""  # it was a plan only
    assert cli.json(*reset, "--shift", "-3", "--execute")["executed"] is True
    (found,) = cli.json("groups", "describe", group)
    assert (found["state"], found["members"]) == ("Empty", [])
    (offset,) = found["offsets"]
    assert (offset["committed"], offset["latest"], offset["lag"]) == (7, 10, 3)
    assert "lag 3" in cli.text("groups", "describe", group)
    assert cli.text(*read) == "7\n8\n9\n"
    for place, first in (("earliest", 0), ("latest", 10), ("5", 5), ("99", 10), ("2020-01-01", 0)):
        moved = cli.json(*reset, "--topic", f"{topic}:0", "--to", place, "--execute")
        assert moved["offsets"][0]["new"] == first

    assert cli.json("groups", "delete", group, "--yes") == {"deleted": [group]}
    for command in (
        ("describe", group),
        ("delete", group, "--yes"),
        ("reset-offsets", group, "--to", "0"),
    ):
        assert cli.refused("groups", *command)["type"] == "GroupNotFound"


def test_a_group_in_use_is_shown_and_left_alone(cli: Cli) -> None:
    topic, group = cli.names("jobs"), cli.names("workers")
    cli.text("topics", "create", topic, "-p", "2")
    cli.produce(topic, b"x\n")
    consumer = Consumer(
        {"bootstrap.servers": cli.bootstrap, "group.id": group, "client.id": "tester"}
    )
    try:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.1) or consumer.assignment(), bool)
        (found,) = cli.json("groups", "describe", group)
        assert found["state"] == "Stable"
        (member,) = found["members"]
        assert member["client_id"] == "tester"
        assert member["partitions"] == [{"topic": topic, "partition": part} for part in (0, 1)]
        assert {each["member_id"] for each in found["offsets"]} == {member["member_id"]}
        assert "tester" in cli.text("groups", "describe", group)
        for command in (
            ("groups", "delete", group, "--yes"),
            ("groups", "reset-offsets", group, "--topic", topic, "--to", "latest", "--execute"),
            ("consume", topic, "-e", "--group", group, "--partition", "0"),
        ):
            error = cli.refused(*command)
            assert error["type"] == "GroupNotEmpty"
            assert f"'{group}' has members" in error["message"]
    finally:
        consumer.close()


def test_members_share_a_topic_and_one_takes_over(cli: Cli) -> None:
    topic, group = cli.names("jobs"), cli.names("workers")
    cli.text("topics", "create", topic, "-p", "2")
    for partition in (0, 1):
        cli.produce(topic, b"%d\n" % partition, "-p", str(partition))
    chosen = ("--set", "heartbeat.interval.ms=300")
    readers = [cli.start("consume", topic, "--group", group, *chosen) for _ in range(2)]
    try:
        eventually(lambda: shares(cli, group), lambda found: found == [1, 1])
        stopped, goes_on = readers
        stopped.send_signal(signal.SIGINT)
        first, errors = stopped.communicate(timeout=SECONDS)
        assert (stopped.returncode, errors) == (130, b"")
        eventually(lambda: shares(cli, group), lambda found: found == [2])
        for partition in (0, 1):
            cli.produce(topic, b"%d again\n" % partition, "-p", str(partition))
        eventually(lambda: committed(cli, group), lambda found: found == [2, 2])
        goes_on.send_signal(signal.SIGINT)
        second, errors = goes_on.communicate(timeout=SECONDS)
        assert (goes_on.returncode, errors) == (130, b"")
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
    lines = (first + second).splitlines()
    assert sorted(lines) == [b"0", b"0 again", b"1", b"1 again"]


def shares(cli: Cli, group: str) -> list[int]:
    """How many partitions each member has."""
    done = cli.run("groups", "describe", group, "--json")
    if done.status:
        return []
    (found,) = json.loads(done.output)
    return sorted(len(each["partitions"]) for each in found["members"])


def committed(cli: Cli, group: str) -> list[int]:
    (found,) = cli.json("groups", "describe", group)
    return [each["committed"] for each in found["offsets"]]


def held_back(cli: Cli, group: str) -> int:
    (found,) = cli.json("groups", "describe", group)
    held: int = found["offsets"][0]["held_back"]
    return held


def test_lag_is_in_records_and_what_is_open_is_told_apart(cli: Cli) -> None:
    topic, group = cli.names("lag"), cli.names("group")
    cli.text("topics", "create", topic)
    cli.produce(topic, b"1\n2\n3\n", "-t", cli.names("id"))
    # A commit is answered before its markers are written.
    eventually(lambda: cli.text("consume", topic, "-e"), lambda text: text == "1\n2\n3\n")
    assert cli.text("consume", topic, "-e", "--group", group, "--max", "1") == "1\n"
    (found,) = cli.json("groups", "describe", group)
    (offset,) = found["offsets"]
    assert (offset["committed"], offset["latest"]) == (1, 4)
    assert (offset["lag"], offset["lag_is_exact"], offset["held_back"]) == (2, True, 0)
    writer = Producer({"bootstrap.servers": cli.bootstrap, "transactional.id": cli.names("open")})
    writer.init_transactions(SECONDS)
    writer.begin_transaction()
    writer.produce(topic, b"hidden")
    writer.flush(SECONDS)
    (found,) = cli.json("groups", "describe", group)
    assert [found["offsets"][0][name] for name in ("lag", "held_back")] == [2, 1]
    assert "lag 2" in cli.text("groups", "describe", group)
    writer.abort_transaction(SECONDS)
    eventually(lambda: held_back(cli, group), lambda found: found == 0)
    # Behind the last record are a marker, an aborted record and its marker: nothing to read.
    assert cli.text("consume", topic, "-e", "--group", group) == "2\n3\n"
    (found,) = cli.json("groups", "describe", group)
    assert [found["offsets"][0][name] for name in ("committed", "lag")] == [6, 0]


def test_a_person_types_follows_and_stops(cli: Cli) -> None:
    topic, group = cli.names("chat"), cli.names("reader")
    cli.text("topics", "create", topic)
    reader = cli.start("consume", topic, "--group", group)
    writer = cli.start("produce", topic)
    assert writer.stdin is not None
    assert reader.stdout is not None
    for word in (b"hello\n", b"world\n"):
        writer.stdin.write(word)
        writer.stdin.flush()
        assert reader.stdout.readline() == word  # while the writer is still open
    assert b"sent 2 records" in writer.communicate(timeout=SECONDS)[0]
    reader.send_signal(signal.SIGINT)
    _, errors = reader.communicate(timeout=SECONDS)
    assert (reader.returncode, errors) == (130, b"")
    (found,) = cli.json("groups", "describe", group)
    assert found["offsets"][0]["committed"] == 2  # what was read is committed on the way out


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(cli: Cli) -> None:
    topic = cli.names("long")
    cli.text("topics", "create", topic)
    cli.produce(topic, b"a line that is a little longer\n" * 20_000)
    reader = cli.start("consume", topic)
    assert reader.stdout is not None
    assert reader.stderr is not None
    assert reader.stdout.readline() == b"a line that is a little longer\n"
    reader.stdout.close()
    assert (reader.wait(timeout=SECONDS), reader.stderr.read()) == (0, b"")
    reader.stderr.close()
    if reader.stdin is not None:
        reader.stdin.close()
