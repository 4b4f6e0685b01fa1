"""A package is a room with a door: others touch what its `__init__` exports, and nothing else."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from onceflow.doors import door

SRC: Final = Path(__file__).resolve().parents[2] / "src"
PUBLIC: Final = ("onceflow", "onceflow.blocking", "onceflow.spark", "onceflow.testing")
# Rooms of these are rooms of the house: their own front is for users.
NOT_A_DOOR: Final = {"onceflow", "onceflow.spark", "onceflow.cli"}
# Found by the name of an API, one module for each.
BY_NAME: Final = {"onceflow.broker.handlers", "onceflow.wire.newer"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


FILES: Final = {module_of(path): path for path in sorted((SRC / "onceflow").rglob("*.py"))}
PACKAGES: Final = {name for name, path in FILES.items() if path.name == "__init__.py"}


def packages_around(module: str) -> list[str]:
    """From the outermost package to the one that the module is in, or is."""
    parts = (module if module in PACKAGES else module.rpartition(".")[0]).split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def way_to(target: str, asking: str) -> str:
    """From where a module takes what the target defines: from the door of the first room on the
    way that it is not in itself."""
    own = packages_around(asking)
    if target.rpartition(".")[0] in BY_NAME:
        return target
    for package in packages_around(target):
        is_door = package not in NOT_A_DOOR or package == target
        if package not in own and is_door:
            return package
    return target


class Import(NamedTuple):
    module: str
    name: str
    line: int


def imports_of(module: str) -> list[Import]:
    tree = ast.parse(FILES[module].read_text())
    return [
        Import(node.module, alias.name, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onceflow")
        for alias in node.names
        if node.module and f"{node.module}.{alias.name}" not in FILES
    ]


@pytest.mark.parametrize("module", sorted(FILES))
def test_others_are_asked_at_their_door(module: str) -> None:
    if module in PACKAGES and module not in PUBLIC:
        return  # a door names the modules behind it
    through_walls = [
        f"{FILES[module]}:{each.line}: import {each.name} from {way_to(each.module, module)}, "
        f"not from {each.module}"
        for each in imports_of(module)
        if way_to(each.module, module) != each.module
    ]
    assert not through_walls


def for_type_checkers(tree: ast.Module) -> dict[str, str]:
    """Name to module, as the imports under TYPE_CHECKING have it."""
    return {
        alias.asname or alias.name: node.module or ""
        for branch in tree.body
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def for_the_program(package: str, tree: ast.Module) -> dict[str, str]:
    """Name to module, as the table of the door has it."""
    tables = [
        ast.literal_eval(node.args[1])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "door"
    ]
    return {
        name: f"{package}.{module}"
        for table in tables
        for module, names in table.items()
        for name in names.split()
    }


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_door_says_the_same_to_type_checkers_and_to_the_program(package: str) -> None:
    tree = ast.parse(FILES[package].read_text())
    assert for_type_checkers(tree) == for_the_program(package, tree)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_export_has_the_name_of_a_module_beside_it(package: str) -> None:
    """Importing the module would put it in the place of what is exported."""
    tree = ast.parse(FILES[package].read_text())
    modules = {each.rpartition(".")[2] for each in FILES if each.rpartition(".")[0] == package}
    assert not for_the_program(package, tree).keys() & modules


@pytest.mark.parametrize("package", PUBLIC)
def test_all_that_is_public_is_there(package: str) -> None:
    front = import_module(package)
    assert front.__all__
    for name in front.__all__:
        assert getattr(front, name) is not None


def test_a_door_refuses_what_it_does_not_know() -> None:
    with pytest.raises(AttributeError, match="module 'onceflow' has no attribute 'Prodcer'"):
        door("onceflow", {"client": "Producer"})("Prodcer")
