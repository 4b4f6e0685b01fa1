"""The doors of packages: what others may touch, loaded when a name is asked for.

A package names in its `__init__` what it exports, twice: for type checkers as imports, and for the
program as a table from modules to names. So importing a package costs nothing, and a program loads
no more than it uses; the test of rooms holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from sys import modules
from typing import Any


def door(package: str, exports: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package, from its modules (or inner packages) to the names, separated
    by blanks, that come from each."""
    homes = {name: module for module, names in exports.items() for name in names.split()}

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home}"), name)
        # Kept in the package, so that the next use does not come here.
        vars(modules[package])[name] = value
        return value

    return load
