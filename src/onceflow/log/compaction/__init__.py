"""Compaction keeps the newest record of each key: it picks logs and segments, and writes new
segments beside the old ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.log.compaction.compactor import Compactor as Compactor
else:
    __getattr__ = door(
        __name__,
        {
            "compactor": "Compactor",
        },
    )
