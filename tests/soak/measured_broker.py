"""`onceflow serve` that writes down what it holds in memory, and can be made to leak.

    python -m tests.soak.measured_broker CENSUS-FILE SECONDS LEAK,LEAK... SERVE-ARGUMENTS...

Every some seconds the census is put into the file, whole. `-` stands for no leak.
"""

from __future__ import annotations

import json
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import cast

from onceflow.broker.topics.internal_logs import METADATA_POLICY, POLICIES
from onceflow.cli import run
from onceflow.runtime.compiling.compiling import at_import
from tests.soak.census import Census
from tests.soak.leaks import LEAKS

OWN_SEGMENT_BYTES = 128 << 10


def _take_census(census: Census, path: Path, seconds: float) -> None:
    never = threading.Event()
    aside = path.with_suffix(".unfinished")
    while not never.wait(seconds):
        aside.write_text(json.dumps(census.count()))
        aside.replace(path)


def _compile() -> None:
    """What the broker would have compiled while it serves, where this was not done before, and
    would do more slowly until then."""
    at_import.set()
    for name in ("records.kernels", "records.write_kernels", "log.segments.record_kernel"):
        import_module(f"onceflow.{name}")


def _shrink_own_logs() -> None:
    """No setting changes how the broker keeps its own state: in 16 MB, which take an hour to come.
    They are to be compacted many times."""
    for policy in POLICIES.values():
        cast(dict[str, str], policy)["internal.segment.bytes"] = str(OWN_SEGMENT_BYTES)
    object.__setattr__(METADATA_POLICY, "segment_bytes", OWN_SEGMENT_BYTES)


def main(path: str, seconds: str, leaks: str, *arguments: str) -> int:
    _compile()
    _shrink_own_logs()
    for leak in leaks.split(",") if leaks != "-" else ():
        LEAKS[leak]()
    given = (Census(), Path(path), float(seconds))
    threading.Thread(target=_take_census, args=given, daemon=True).start()
    return run(["serve", *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
