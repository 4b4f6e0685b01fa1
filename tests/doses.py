"""How much a test draws at random in each run: a dose in `make test`, all of it in `make long`.

Each run draws anew, so that what a dose leaves out, the next ones have.
"""

from __future__ import annotations

import os
from typing import Final

WHOLE: Final = os.environ.get("ONCEFLOW_DOSE") == "whole"
PARTS: Final = 3


def examples(whole: int) -> int:
    """The number of examples, of so many in `make long`."""
    return whole if WHOLE else -(-whole // PARTS)
