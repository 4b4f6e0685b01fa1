"""Apache Kafka's command-line tools, one after the other in one JVM for each broker: the start of a
JVM takes longer than most of what they do."""

from __future__ import annotations

import subprocess
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tools.java import find_java
from tools.kafka_jars import classpath_of_newest_client

PROGRAM: Final = Path(__file__).with_name("Tools.java")
TOOL_SECONDS: Final = 90.0
STOP_SECONDS: Final = 30.0
# What is compiled fast beats what runs fast: each tool runs for a second.
JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
OPENED: Final = "--add-opens=java.base/java.lang=ALL-UNNAMED"
"""The program does at the end of each tool what Java would do at the end of a JVM."""


class Ended(NamedTuple):
    """How a tool ended."""

    status: int
    said: str
    complained: str


class ToolBench:
    """A JVM in which tools are run, each with what its standard input holds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [
                *(str(find_java()), *JVM_OPTIONS, OPENED),
                *("-cp", classpath_of_newest_client(), str(PROGRAM)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tool: str, *arguments: str, text: str = "") -> Ended:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = " ".join(_word(each) for each in (tool, text, *arguments))
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        # A tool that does not end is ended, with all the JVM: then the answer is empty.
        too_late = threading.Timer(TOOL_SECONDS, self._process.kill)
        too_late.start()
        answer = self._process.stdout.readline()
        too_late.cancel()
        assert answer, f"the JVM of {tool} {arguments} is gone"
        status, *words = answer.split(" ")
        said, complained = (b64decode(word[1:]).decode() for word in words)
        return Ended(int(status), said, complained)

    def close(self) -> None:
        try:
            self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def _word(text: str) -> str:
    return f".{b64encode(text.encode()).decode()}"


_BENCHES: Final[dict[str, ToolBench]] = {}
_MADE: Final = threading.Lock()


def bench_of(bootstrap: str) -> ToolBench:
    """The one for a broker; scripts run on several brokers at once."""
    with _MADE:
        if bootstrap not in _BENCHES:
            _BENCHES[bootstrap] = ToolBench()
        return _BENCHES[bootstrap]


@contextmanager
def benches() -> Iterator[None]:
    """Ends them all when the block is left."""
    try:
        yield
    finally:
        while _BENCHES:
            _BENCHES.popitem()[1].close()
