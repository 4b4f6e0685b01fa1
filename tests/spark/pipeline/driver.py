"""`onceflow run` with hooks: who comes to a named point of a batch asks whether something happens
there.

    python -m tests.spark.pipeline.driver PORT NAME run FILE ...

PORT is that of the fate server, NAME what this process is called there.
"""

from __future__ import annotations

import sys

from onceflow.cli import run
from tests.spark.kills.fate import Fate
from tests.spark.sink.hooks import at_points


def main(port: int, name: str, arguments: list[str]) -> int:
    with at_points(Fate(port, name)):
        return run(arguments)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
