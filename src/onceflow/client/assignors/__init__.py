"""Which member of a group reads which partition: Kafka's strategies, as pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.client.assignors.assignors import (
        ASSIGNORS as ASSIGNORS,
        Assignor as Assignor,
        user_data as user_data,
    )
    from onceflow.client.assignors.member_subscription import (
        MemberSubscription as MemberSubscription,
        log_unreadable_subscription as log_unreadable_subscription,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "assignors": "ASSIGNORS Assignor user_data",
            "member_subscription": "MemberSubscription log_unreadable_subscription",
        },
    )
