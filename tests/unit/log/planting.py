"""Plants a bug: one function, with one piece of its source changed.

A test that looks for what must never happen proves with it that it would see that.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

import pytest


def plant(patch: pytest.MonkeyPatch, owner: Any, name: str, right: str, wrong: str) -> None:
    """Puts `wrong` where the method `name` of the class `owner` says `right`, exactly once."""
    honest = inspect.getattr_static(owner, name)
    if isinstance(honest, property):
        raise TypeError(f"{owner.__name__}.{name} is a property")
    source = textwrap.dedent(inspect.getsource(honest))
    if source.count(right) != 1:
        raise LookupError(f"{owner.__name__}.{name} says {source.count(right)} times {right!r}")
    made: dict[str, Any] = {}
    code = compile(source.replace(right, wrong), f"<{name} with a bug>", "exec")
    exec(code, vars(sys.modules[owner.__module__]), made)
    patch.setattr(owner, name, made[name])
