"""Apache Kafka's own admin client, the newest there is, asks about what is neither topic nor group:
log dirs, elections, reassignments, the quorum, features and the broker's configs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import batch, produce
from tests.interop.harness import Compare, Names, Transcript
from tools.java import find_java
from tools.kafka_jars import classpath_of_newest_client

pytestmark = pytest.mark.interop

PROGRAM: Final = Path(__file__).with_name("Administration.java")
SECONDS: Final = 90
# The program lives for a few seconds: code that is compiled fast beats code that runs fast.
JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")


def java_administration(bootstrap: str, names: Names, transcript: Transcript) -> None:
    topic = ready_topic(names, partitions=2)
    with RawConnection(bootstrap) as connection:
        assert produce(connection, topic, batch(b"a", b"b"))["error_code"] == "NONE"
    command = [str(find_java()), *JVM_OPTIONS, "-cp", classpath_of_newest_client(), str(PROGRAM)]
    done = subprocess.run(
        [*command, bootstrap, names.prefix],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in done.stdout.splitlines():
        row = json.loads(line)
        transcript.note(row["step"], row["saw"])


def test_the_java_admin_client(compare: Compare, kafka_jars: Path) -> None:
    assert kafka_jars.is_dir()
    compare(java_administration)
