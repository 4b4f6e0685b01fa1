"""Pages, examples and the doctests of public classes import what is public, and nothing else."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PUBLIC: Final = ("onceflow", "onceflow.blocking", "onceflow.spark", "onceflow.testing")
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES: Final = sorted((ROOT / "examples").rglob("*.py"))


def imports_of(code: str) -> Iterator[tuple[str, str]]:
    """Module and name; the name is empty where the module itself is imported."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def not_public(code: str) -> list[str]:
    found = []
    for module, name in imports_of(code):
        if module.split(".")[0] != "onceflow":
            continue
        if module not in PUBLIC:
            found.append(module)
            continue
        is_there = not name or f"{module}.{name}" in PUBLIC or name in import_module(module).__all__
        if not is_there:
            found.append(f"{module}.{name}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_for_users(page: Path) -> None:
    # Line by line: some blocks are sketches that do not parse.
    lines = re.findall(r"^ *((?:from|import) onceflow.*)$", page.read_text(), re.MULTILINE)
    assert not [each for line in lines for each in not_public(line)]
    told = re.findall(r"\b(?:from|import) (onceflow(?:\.\w+)*)", page.read_text())
    assert set(told) <= set(PUBLIC)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_examples(path: Path) -> None:
    assert not not_public(path.read_text())


@pytest.mark.parametrize("package", PUBLIC)
def test_doctests_of_public_classes(package: str) -> None:
    front = import_module(package)
    parser = doctest.DocTestParser()
    for name in front.__all__:
        examples = parser.get_examples(getattr(front, name).__doc__ or "")
        assert not [each for example in examples for each in not_public(example.source)], name
