"""A member of a consumer group: the machine without a network (`member`), and the tasks that run
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.group.events import (
        log_assigned as log_assigned,
        log_commit_failed as log_commit_failed,
        log_committed as log_committed,
        log_lost as log_lost,
        log_revoked as log_revoked,
    )
    from onceflow.client.group.loop import (
        GroupLoop as GroupLoop,
        MemberAssignment as MemberAssignment,
        OwnedPartitions as OwnedPartitions,
    )
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
    from onceflow.client.group.subscription import Subscription as Subscription
else:
    __getattr__ = door(
        __name__,
        {
            "events": "log_assigned log_commit_failed log_committed log_lost log_revoked",
            "loop": "GroupLoop MemberAssignment OwnedPartitions",
            "member": "MemberMachine Membership",
            "metrics": "GroupMetrics",
            "requests": "Committed commit committed",
            "subscription": "Subscription",
        },
    )
