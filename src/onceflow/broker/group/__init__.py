"""The group coordinator, and the topic in which groups keep their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.group.coordinator import (
        GroupHost as GroupHost,
        GroupOutcome as GroupOutcome,
        GroupService as GroupService,
        OffsetsAdmission as OffsetsAdmission,
    )
    from onceflow.broker.group.topic import OffsetsTopic as OffsetsTopic
else:
    __getattr__ = door(
        __name__,
        {
            "coordinator": "GroupHost GroupOutcome GroupService OffsetsAdmission",
            "topic": "OffsetsTopic",
        },
    )
