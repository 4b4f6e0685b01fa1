"""TODO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.door import door

if TYPE_CHECKING:
    from onceflow.broker.group.coordinator import (
        GroupHost as GroupHost,
        GroupService as GroupService,
        Outcome as Outcome,
    )
    from onceflow.broker.group.topic import OffsetsTopic as OffsetsTopic
else:
    __getattr__ = door(
        __name__,
        {
            "coordinator": "GroupHost GroupService Outcome",
            "topic": "OffsetsTopic",
        },
    )
