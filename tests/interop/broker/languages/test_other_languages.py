"""Clients in Go and JavaScript, and kafka-python before its version 3: each has a program in
its folder here that administers topics, groups and the broker, produces, transforms in
transactions, and prints what it was answered. What they ask differs: AlterConfigs, say, is all that
some have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.interop.harness import Compare, Names, Script, Transcript
from tools.other_clients import PROGRAMS

pytestmark = pytest.mark.interop

SECONDS: Final = 90


def by_program(
    name: str, command: Sequence[str], surroundings: Mapping[str, str] | None = None
) -> Script:
    """What a program prints: one JSON object a line, {"step": ..., "saw": ...}."""

    def script(bootstrap: str, names: Names, transcript: Transcript) -> None:
        done = subprocess.run(
            [*command, bootstrap, names.prefix],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, **(surroundings or {})},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for line in done.stdout.splitlines():
            row = json.loads(line)
            transcript.note(row["step"], row["saw"])

    script.__name__ = name
    return script


def test_kafka_python_of_the_second_line(compare: Compare, kafka_python_2: Path) -> None:
    command = [sys.executable, str(PROGRAMS / "kafka_python" / "program.py")]
    compare(by_program("kafka_python_2", command, {"PYTHONPATH": str(kafka_python_2)}))


def test_kafkajs(compare: Compare, kafkajs: tuple[str, Path]) -> None:
    node, modules = kafkajs
    command = [node, str(PROGRAMS / "kafkajs" / "program.js")]
    compare(by_program("kafkajs", command, {"NODE_PATH": str(modules)}))


@pytest.mark.long  # the program takes a minute or three to build
@pytest.mark.parametrize("client", ["franz-go", "sarama", "kafka-go"])
def test_clients_in_go(client: str, compare: Compare, go_clients: Path) -> None:
    compare(by_program(client, [str(go_clients), client]))
