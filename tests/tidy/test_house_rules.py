"""The rules of the house, as tests: sizes, doors to the world, what the project says of itself."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = sorted(
    path
    for folder in ("src", "tests", "bench", "tools")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
MAX_FUNCTION_LINES = 60

# The core has no clock, no socket, no file, no thread and no randomness: they are passed in.
CORE = ("records", "log", "producers", "txn", "group", "wire")
NO_DOORS = {"wire": {"datetime", "io"}}  # durations and buffers in memory
WORLD = {
    "asyncio",
    "datetime",
    "io",
    "os",
    "pathlib",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(tree: ast.Module) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.partition(".")[0])
    return modules


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_functions_can_be_held_in_mind(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_module_opens_with_what_it_promises(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_invariants_do_not_vanish_under_optimisation(path: Path) -> None:
    asserts = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)
    ]
    assert not asserts, "raise a named error instead of assert"


def package(path: Path) -> str:
    """The package below `onceflow` that a source belongs to."""
    return (*path.relative_to(ROOT / "src").parts, "")[1]


@pytest.mark.parametrize("path", [path for path in SOURCES if package(path) in CORE], ids=name)
def test_the_core_has_no_door_of_its_own_to_the_world(path: Path) -> None:
    doors = WORLD - NO_DOORS.get(package(path), set())
    assert not imported(ast.parse(path.read_text())) & doors


def tracked_text() -> list[tuple[str, str]]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    programs = (".py", ".java", ".go", ".js", "Makefile", ".ci/run")
    wanted = (*programs, ".md", ".toml", ".lock", ".in", ".xml", ".mod", ".sum", ".json")
    return [
        (each, (ROOT / each).read_text())
        for each in names
        if (each.endswith(wanted) or each.startswith("bench/kept/")) and (ROOT / each).exists()
    ]


def test_no_file_names_a_registry_a_machine_or_an_unfinished_promise() -> None:
    forbidden = re.compile(
        r"https?://[a-z0-9.-]*(?:maven|pypi|pythonhosted|npmjs|crates)[a-z0-9.-]*"
        r"|/(?:home|root|work)/[a-z]"
        r"|\b(?:TODO|FIXME)\b",
    )
    here = name(Path(__file__).resolve())
    found = [
        f"{path}: {match[0]}"
        for path, text in tracked_text()
        if path != here
        for match in forbidden.finditer(text)
    ]
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_the_message_library_is_loaded_by_one_thread_at_a_time(path: Path) -> None:
    """Two threads that load it from both ends fail; a client may live beside a broker."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            unguarded = {
                node.lineno
                for node in ast.walk(function)
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kio")
            }
            for node in ast.walk(function):
                if isinstance(node, ast.With) and "message_library" in ast.unparse(node.items[0]):
                    unguarded -= {inner.lineno for inner in node.body}
            assert not unguarded, f"lines {unguarded}: with message_library:"
