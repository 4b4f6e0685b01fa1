"""A class name exists once in the house: whoever searches for one finds one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

SRC: Final = Path(__file__).resolve().parents[2] / "src"

TWINS: Final = {
    "Admin",
    "Consumer",
    "Producer",
    "RebalanceListener",
    "Receipt",
    "Session",
    "SessionTransaction",
    "Transaction",
}
"""`onceflow.blocking` has the names of `onceflow`, for programs without asyncio."""

NOT_YET: Final = {"Session"}
"""Names that still mean two things: this only ever shrinks."""


def homes_of_classes() -> dict[str, list[str]]:
    homes = defaultdict(list)
    for path in sorted((SRC / "onceflow").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(SRC)))
    return homes


def test_a_class_name_exists_once() -> None:
    twice = {
        name: homes
        for name, homes in homes_of_classes().items()
        if len(homes) > 1 and name not in TWINS | NOT_YET
    }
    assert not twice


def test_twins_are_a_blocking_one_and_the_one_it_drives() -> None:
    for name in TWINS - NOT_YET:
        homes = homes_of_classes()[name]
        assert len(homes) == 2
        assert sum(home.startswith("onceflow/blocking/") for home in homes) == 1
