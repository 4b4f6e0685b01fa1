"""Commands that ask before they destroy, say what they have done, and stay readable on a narrow
terminal."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onceflow
from onceflow.blocking import Admin, Consumer, Producer
from onceflow.cli import run
from onceflow.cli.common import output
from onceflow.types import TopicPartition

SECONDS = 60
PLACE = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[onceflow.Broker]:
    with onceflow.Broker() as made:
        yield made


@pytest.fixture
def admin(broker: onceflow.Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    """Of a broker with a topic `orders`, and a group `shop`."""
    monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", broker.bootstrap)
    with Admin(broker.bootstrap) as made:
        names = [each.name for each in made.list_topics()]
        if "orders" not in names:
            made.create_topic("orders", partitions=1)
        with Producer(broker.bootstrap) as producer:
            producer.send("orders", b"1")
        with Consumer(broker.bootstrap, group_id="shop") as consumer:
            consumer.assign([PLACE])
            consumer.commit({PLACE: 1})
        yield made


def answer(monkeypatch: pytest.MonkeyPatch, text: str, *, at_a_terminal: bool) -> None:
    stdin = io.StringIO(text)
    monkeypatch.setattr(stdin, "isatty", lambda: at_a_terminal)
    monkeypatch.setattr(sys, "stdin", stdin)


def topics(admin: Admin) -> list[str]:
    return [each.name for each in admin.list_topics() if not each.is_internal]


def groups(admin: Admin) -> list[str]:
    return [each.group_id for each in admin.list_groups()]


# --- what cannot be taken back --------------------------------------------------------------------


HANGING = "--topic orders --partition 0 --start-offset 0"


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "delete", "orders"],
        ["groups", "delete", "shop"],
        ["transactions", "abort", "shop"],
        ["transactions", "abort", *HANGING.split()],
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_nothing_is_done_where_nobody_can_be_asked(
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    more: list[str],
) -> None:
    for piped in ("n\n", "y\n", ""):
        answer(monkeypatch, piped, at_a_terminal=False)
        assert run([*command, *more]) == 1
        told = capsys.readouterr().err
        assert "needs an answer, and standard input is not a terminal" in told
        assert "--yes" in told
    assert "orders" in topics(admin)
    assert "shop" in groups(admin)


@pytest.mark.parametrize(("said", "is_left"), [("n\n", True), ("\n", True), ("y\n", False)])
def test_a_person_is_asked(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, said: str, is_left: bool
) -> None:
    for command in (["groups", "delete", "shop"], ["topics", "delete", "orders"]):
        answer(monkeypatch, said, at_a_terminal=True)
        assert run(command) == (1 if is_left else 0)
    assert ("orders" in topics(admin)) is is_left
    assert ("shop" in groups(admin)) is is_left


def test_yes_is_enough(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "", at_a_terminal=False)
    assert run(["groups", "delete", "shop", "--yes"]) == 0
    assert run(["topics", "delete", "orders", "-y"]) == 0
    assert topics(admin) == []
    assert groups(admin) == []


# --- what was done --------------------------------------------------------------------------------


def test_a_reset_says_whether_it_was_done(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    reset = ["groups", "reset-offsets", "shop", "--to", "earliest"]
    assert run(reset) == 0
    planned = capsys.readouterr()
    assert "nothing was changed" in planned.err
    assert "done" not in planned.out
    assert run([*reset, "--execute"]) == 0
    done = capsys.readouterr()
    assert "done: moved group shop in 1 partition" in done.out
    assert "nothing was changed" not in done.err


@pytest.mark.parametrize("kind", ["topics", "groups"])
def test_what_was_deleted_is_told_when_the_next_cannot_be(
    admin: Admin, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    there, missing = {"topics": "orders", "groups": "shop"}[kind], "nothere"
    delete = [kind, "delete", there, missing, "--yes"]
    assert run([*delete, "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out) == {"deleted": [there]}
    assert missing in json.loads(told.err)["error"]["message"]
    assert run([*delete, "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out) == {"deleted": []}
    assert there in json.loads(told.err)["error"]["message"]


def test_a_misspelt_topic_is_not_created_by_produce(
    admin: Admin, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("hello\n")
    assert run(["produce", "ordres", "--file", str(lines)]) == 1
    assert "there is no topic 'ordres'; did you mean 'orders'?" in capsys.readouterr().err
    assert "ordres" not in topics(admin)
    allowed = ["--set", "allow.auto.create.topics=true"]
    assert run(["produce", "ordres", "--file", str(lines), *allowed]) == 0
    admin.delete_topic("ordres")


def test_a_data_directory_that_is_none_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for wrong in (file, file / "below"):
        serving = [sys.executable, "-m", "onceflow", "serve", "--data-dir", str(wrong)]
        done = subprocess.run(serving, capture_output=True, text=True, check=False, timeout=SECONDS)
        assert done.returncode == 1
        assert f"{file} is not a directory; choose another data directory" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--set", "foo=1"], "unknown setting 'foo'\n"),
        (["--set", "num.partition=3"], "unknown setting 'num.partition'; did you mean 'num.part"),
        (["--set", "num.partitions=x"], "num.partitions = 'x' is not allowed; it may be a whole"),
        (["--durability", "none"], "durability = 'none' (--durability) is not allowed; it may"),
    ],
)
def test_messages_name_only_options_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], told: str
) -> None:
    assert run(["serve", "--data-dir", str(tmp_path), *wrong]) == 1
    assert told in capsys.readouterr().err


def test_the_example_of_a_configuration_starts_a_broker_as_it_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--example-config"]) == 0
    (tmp_path / "broker.toml").write_text(capsys.readouterr().out)
    serving = [sys.executable, "-m", "onceflow", "serve", "--config", "broker.toml"]
    with subprocess.Popen(
        [*serving, "--listen", "127.0.0.1:0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on 127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert "0 topics, new, durability fsync" in logged
    assert (tmp_path / "onceflow-data").is_dir()


# --- tables ---------------------------------------------------------------------------------------

LARGE = 12_345_678_901_234
TABLES: list[tuple[tuple[str, ...], list[tuple[Any, ...]], tuple[str, ...]]] = [
    (
        ("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "EARLIEST", "LATEST", "OFFSETS"),
        [(0, 1, "1,2,3", "1,2,3", LARGE, LARGE + 1, 1), (1, 1, "1", "1", 0, 0, 0)],
        ("PARTITION", "LEADER", "EARLIEST", "LATEST", "OFFSETS"),
    ),
    (
        ("TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG", "HELD", "CLIENT"),
        [("orders-of-the-whole-world", 0, LARGE, LARGE, "~1,234,567", None, "onceflow/127.0.0.1")],
        ("PARTITION", "COMMITTED", "LATEST", "LAG", "HELD"),
    ),
    (("TOPIC", "PARTITIONS", "REPLICAS"), [("x" * 200, 3, 1)], ("PARTITIONS", "REPLICAS")),
    (("TRANSACTIONAL ID", "STATE", "PRODUCER"), [("id " * 40, "Ongoing", LARGE)], ("PRODUCER",)),
]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize(("columns", "rows", "numbers"), TABLES)
def test_no_number_is_broken_and_no_line_is_too_long(
    width: int,
    columns: tuple[str, ...],
    rows: list[tuple[Any, ...]],
    numbers: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_table(columns, rows, numbers)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    words = shown.split()
    for row in rows:
        for name, cell in zip(columns, row, strict=True):
            if name in numbers:
                assert str("-" if cell is None else cell) in words, shown
    is_stacked = columns[1] not in shown.splitlines()[0]
    if not is_stacked:
        assert max(map(len, shown.splitlines())) <= width, shown


def test_a_pipe_gets_each_row_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for columns, rows, numbers in TABLES:
        output.print_table(columns, rows, numbers)
        assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)


def test_no_hidden_option_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--port", "5"]) == 2
    assert "No such option: --port\n" in capsys.readouterr().err
    assert run(["serve", "--lissen", "x"]) == 2
    assert "--listen" in capsys.readouterr().err
