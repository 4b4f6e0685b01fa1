"""Apache Kafka's own dump tool, and what it says of a file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tools.java import find_java


def dump(jars: Path, files: list[Path], *options: str) -> str:
    java = find_java()
    assert java is not None
    names = ",".join(map(str, files))
    done = subprocess.run(
        [
            java,
            "-cp",
            f"{jars}/*",
            "org.apache.kafka.tools.DumpLogSegments",
            *options,
            "--files",
            names,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not complaints(done.stderr)
    return done.stdout


def complaints(stderr: str) -> str:
    """What the tool says is wrong, but for warnings of a newer Java about the tool itself, and
    for one thing that it says of Kafka's own files too.

    It starts each file as if offset -1 had gone before, so every segment but the first one has
    "non-consecutive offsets" (Apache Kafka 4.3.1, seen on segments that its broker wrote).
    """
    stderr = re.sub(r"^WARNING: .*\n", "", stderr, flags=re.MULTILINE)
    quirk = r"Non-consecutive offsets in \S*/0*(\d+)\.log\n  -1 is followed by \1\n"
    return re.sub(quirk, "", stderr).strip()
