"""How much a test draws at random in each run: a dose in `make test`, all of it in `make long`.

Each run draws anew, so that what a dose leaves out, the next ones have.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

WHOLE: Final = os.environ.get("ONCEFLOW_DOSE") == "whole"
PARTS: Final = 3


def examples(whole: int) -> int:
    """The number of examples, of so many in `make long`."""
    return whole if WHOLE else -(-whole // PARTS)


def some_long(names: Iterable[object], *slow: object) -> list[Any]:
    """Parameters of a test, of which the slow ones are left to `make long`: where others show the
    same of it."""
    return [pytest.param(name, marks=pytest.mark.long) if name in slow else name for name in names]
