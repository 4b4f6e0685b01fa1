"""The examples of CLIENT.md and EMBEDDING.md run as they are written, with a broker of their own in
the place of the one at localhost:9092; those with `await` as in a program's main coroutine."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import prometheus_client
import pytest

import onceflow
from onceflow import TopicPartition
from onceflow.blocking import Admin

pytest_plugins = ["pytester"]

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / document).read_text(), re.DOTALL)


def block(document: str, word: str) -> str:
    """The one example that has this in it."""
    (found,) = [each for each in blocks(document) if word in each]
    return found


EXAMPLES: Final = {
    "producing": 'send("orders", b"paid", key=b"42")',
    "transactions": "send_offsets",
    "two phases": "prepare_transaction",
    "reading": "poll_table",
    "blocking": "onceflow.blocking",
    "metrics": "ClientCollector",
    "logs": "JsonFormatter",
}


def test_each_example_of_the_client_is_run_here() -> None:
    assert [block("CLIENT.md", word) for word in EXAMPLES.values()] == blocks("CLIENT.md")


@pytest.fixture
def empty() -> Iterator[str]:
    """Where a broker listens that has no topics yet, as a reader's first one."""
    with onceflow.Broker({"transaction.two.phase.commit.enable": True}) as broker:
        yield broker.bootstrap


@pytest.fixture
def address(empty: str) -> str:
    """The same with the topics of the examples."""
    with Admin(empty) as admin:
        for topic in ("orders", "payments"):
            admin.create_topic(topic, partitions=1)
    return empty


def run(example: str, address: str, **names: Any) -> dict[str, Any]:
    """What the names stand for when it has run."""
    host, port = address.split(":")
    code = block("CLIENT.md", EXAMPLES[example])
    code = code.replace("localhost:9092", address).replace('"localhost", 9092', f'"{host}", {port}')
    compiled = compile(code, example, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)
    return names


def test_producing(empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("producing", empty)
    assert capsys.readouterr().out == "0\n"
    with Admin(empty) as admin:
        assert [each.name for each in admin.list_topics()] == ["orders"]


def test_transactions(address: str) -> None:
    run("transactions", address)
    with Admin(address) as admin:
        assert admin.committed_offsets("shop") == {TopicPartition("payments", 0): 43}


def test_two_phases(address: str) -> None:
    stored: list[tuple[str, str]] = []
    run(
        "two phases",
        address,
        stored_name="",
        order="book",
        store_in_database=lambda order, name: stored.append((order, name)),
    )
    ((order, name),) = stored
    assert order == "book"
    assert re.fullmatch(r"\d+:\d+", name)
    with Admin(address) as admin:
        assert admin.describe_transaction("shop").state == "CompleteCommit"


def test_reading(address: str) -> None:
    run("producing", address)
    assert run("reading", address)["table"].column("value").to_pylist() == [b"paid"]


def test_metrics(address: str) -> None:
    names = run("metrics", address)
    shown = prometheus_client.generate_latest(prometheus_client.REGISTRY).decode()
    assert 'onceflow_producer_record_send_total{client="shop"} 0.0' in shown
    for each in list(prometheus_client.REGISTRY._collector_to_names):
        if isinstance(each, names["ClientCollector"]):
            prometheus_client.REGISTRY.unregister(each)


def test_logs(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("logs", address)
    run("producing", address)
    logger = logging.getLogger("onceflow.client")
    logger.removeHandler(names["handler"])
    logger.setLevel(logging.NOTSET)
    assert '"event": "connected", "fields": {"address": ' in capsys.readouterr().err


def test_blocking(address: str, tmp_path: Path) -> None:
    """It goes on for ever: it is ended when it has shown the record."""
    code = block("CLIENT.md", EXAMPLES["blocking"]).replace("localhost:9092", address)
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            lines = [running.stdout.readline(), running.stdout.readline()]
        finally:
            running.kill()
    assert lines == ["0\n", "0 b'paid'\n"]


# --- embedding ----------------------------------------------------------------------------------


def test_a_broker_in_a_program(tmp_path: Path) -> None:
    code = block("EMBEDDING.md", "print(broker.bootstrap)")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", done.stdout)


def test_brokers_in_tests(pytester: pytest.Pytester) -> None:
    fixture, orders = block("EMBEDDING.md", "@pytest.fixture"), block("EMBEDDING.md", "test_orders")
    uses_it = "def test_own(broker):\n    assert broker.bootstrap\n"
    imports = "import confluent_kafka\nimport onceflow\nimport pytest\n"
    pytester.makepyfile("\n".join((imports, orders, fixture, uses_it)))
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=2)


def test_settings_of_brokers() -> None:
    code = block("EMBEDDING.md", "log_retention_ms=60_000")
    names: dict[str, Any] = {"onceflow": onceflow}
    for line in code.splitlines():
        assert isinstance(eval(line, names), onceflow.Broker)
    assert len(blocks("EMBEDDING.md")) == 4
