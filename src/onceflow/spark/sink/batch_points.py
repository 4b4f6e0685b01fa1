"""Named points in the life of a batch, for those who show that a process may die there.

`reached` does nothing. Tests and the demo put another function in its place; it goes to the tasks,
too. Tasks reach "before claim", "mid-write" (after each portion) and "after write"; the driver
reaches "before offsets", "before EndTxn" and "after EndTxn".
"""

from __future__ import annotations

from collections.abc import Callable


def nothing(point: str) -> None:
    """What happens at a point."""


reached: Callable[[str], None] = nothing
