"""A member of a consumer group: the machine without a network (`member`), and the tasks that run
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.group.events import (
        told_assigned as told_assigned,
        told_committed as told_committed,
        told_lost as told_lost,
        told_revoked as told_revoked,
        told_uncommitted as told_uncommitted,
    )
    from onceflow.client.group.loop import Given as Given, GroupLoop as GroupLoop, Held as Held
    from onceflow.client.group.member import (
        MemberMachine as MemberMachine,
        Membership as Membership,
    )
    from onceflow.client.group.metrics import GroupMetrics as GroupMetrics
    from onceflow.client.group.requests import (
        Committed as Committed,
        commit as commit,
        committed as committed,
    )
    from onceflow.client.group.subscription import Wish as Wish
else:
    __getattr__ = door(
        __name__,
        {
            "events": "told_assigned told_committed told_lost told_revoked told_uncommitted",
            "loop": "Given GroupLoop Held",
            "member": "MemberMachine Membership",
            "metrics": "GroupMetrics",
            "requests": "Committed commit committed",
            "subscription": "Wish",
        },
    )
