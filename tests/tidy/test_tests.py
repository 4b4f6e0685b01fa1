"""How the tests are laid out: what tests share lies in a helper, and no test imports another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = sorted(
    path for path in (ROOT / "tests").rglob("*.py") if "__pycache__" not in path.parts
)
# It plants bugs, and runs the very test that has to find each of them.
MAY_IMPORT_TESTS: Final = {"tests/sim/sweeps/caller_bugs.py"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported, and every name that is imported from a package, which may be
    a module, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_test_module(module: str) -> bool:
    leaf = module.rpartition(".")[2]
    if not leaf.startswith("test_") and leaf != "conftest":
        return False
    return (ROOT / module.replace(".", "/")).with_suffix(".py").exists()


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_no_module_imports_a_test_or_a_conftest(path: Path) -> None:
    if name(path) in MAY_IMPORT_TESTS:
        return
    found = set(filter(is_test_module, imported_modules(ast.parse(path.read_text()))))
    assert not found, "move what is shared into a helper with a name of its own"


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_helper_is_named_for_what_it_is(path: Path) -> None:
    assert not path.stem.endswith(("_helpers", "_utils", "_common"))
    assert path.stem not in {"helpers", "utils", "common", "shared"}
