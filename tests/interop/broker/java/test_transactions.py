"""Transactions by Apache Kafka's own client, of version 2, and its tool for them: our broker is to
them what theirs is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.transactions import wait_for_coordinators
from tests.interop.harness import Compare, Names, Transcript
from tools.java import find_java
from tools.kafka_jars import classpath_of_newest_client

pytestmark = pytest.mark.interop

PROGRAM: Final = Path(__file__).with_name("Transactions.java")
SECONDS: Final = 90
# The program lives for a few seconds: code that is compiled fast beats code that runs fast.
JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")
OWN_NUMBERS: Final = {
    "Coordinator",
    "CoordinatorId",
    "ProducerId",
    "LastTimestamp",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
}
"""Columns of the tool that no two brokers or runs have alike."""
TIMED: Final = "late"
"""Of this one the state depends on when Apache Kafka last looked for those that are too late."""


def table(lines: list[str], names: Names) -> list[dict[str, str]]:
    """What the tool printed, row by row: only of this run, without what is the broker's own."""
    head, *rows = [[cell.strip() for cell in line.split("\t")[:-1]] for line in lines]
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    mine = [row for row in cells if _is_mine(row.get("TransactionalId"), names)]
    kept = [{key: _stable(key, row[key]) for key in head if key not in OWN_NUMBERS} for row in mine]
    return sorted(kept, key=lambda row: sorted(row.items()))


def _is_mine(transactional_id: str | None, names: Names) -> bool:
    if transactional_id is None:
        return True
    return transactional_id.startswith(names.prefix) and transactional_id != names(TIMED)


def _stable(column: str, cell: str) -> str:
    return ",".join(sorted(cell.split(","))) if column == "TopicPartitions" else cell


def java_transactions(bootstrap: str, names: Names, transcript: Transcript) -> None:
    for label in ("in", "out", "late"):
        ready_topic(names, label, partitions=2)
    with RawConnection(bootstrap) as connection:
        wait_for_coordinators(connection)
    command = [str(find_java()), *JVM_OPTIONS, "-cp", classpath_of_newest_client(), str(PROGRAM)]
    done = subprocess.run(
        [*command, bootstrap, names.prefix],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    saw: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        step = row["step"]
        what = table(row["saw"], names) if step.startswith("tool") and row["saw"][0] else row["saw"]
        transcript.note(step, what)
        saw[step] = what
    assert saw["copied"][0] == 6
    assert saw["commits anew"] == "done"


SCRIPTS = (java_transactions,)


def test_the_java_client_and_its_tool(compare: Compare, kafka_jars: Path) -> None:
    assert kafka_jars.is_dir()
    compare(java_transactions)
