"""Consumer groups: pure state machines and the records they are a fold over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.group.config import GroupConfig as GroupConfig
    from onceflow.group.driver import (
        Attempt as Attempt,
        Driver as Driver,
        Problem as Problem,
        unguarded as unguarded,
    )
    from onceflow.group.events import (
        CommitRequest as CommitRequest,
        EmptinessStored as EmptinessStored,
        Identity as Identity,
        JoinRequest as JoinRequest,
        JoinResult as JoinResult,
        OffsetEntry as OffsetEntry,
        OffsetQuery as OffsetQuery,
        Producer as Producer,
        SyncRequest as SyncRequest,
        SyncResult as SyncResult,
        TxnCommitRequest as TxnCommitRequest,
    )
    from onceflow.group.offsets import (
        FoundOffset as FoundOffset,
        FoundOffsets as FoundOffsets,
        OffsetRecord as OffsetRecord,
        TopicPartition as TopicPartition,
        check_commit as check_commit,
        check_delete as check_delete,
        check_txn_commit as check_txn_commit,
        is_metadata_too_long as is_metadata_too_long,
        look_up as look_up,
    )
    from onceflow.group.offsets_log import (
        OffsetsLog as OffsetsLog,
        Ticket as Ticket,
        failure_code as failure_code,
        ignore as ignore,
    )
    from onceflow.group.persistence import empty_value_of as empty_value_of
    from onceflow.group.records import OffsetKey as OffsetKey, OffsetValue as OffsetValue
    from onceflow.group.state import (
        Group as Group,
        Member as Member,
        Protocol as Protocol,
        State as State,
    )
    from onceflow.group.timers import CallLater as CallLater
else:
    __getattr__ = door(
        __name__,
        {
            "config": "GroupConfig",
            "driver": "Attempt Driver Problem unguarded",
            "events": "CommitRequest EmptinessStored Identity JoinRequest JoinResult "
            "OffsetEntry OffsetQuery Producer SyncRequest SyncResult "
            "TxnCommitRequest",
            "offsets": "FoundOffset FoundOffsets OffsetRecord TopicPartition "
            "check_commit check_delete check_txn_commit is_metadata_too_long "
            "look_up",
            "offsets_log": "OffsetsLog Ticket failure_code ignore",
            "persistence": "empty_value_of",
            "records": "OffsetKey OffsetValue",
            "state": "Group Member Protocol State",
            "timers": "CallLater",
        },
    )
