"""Consumer groups: pure state machines and the records they are a fold over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.group.config import GroupConfig as GroupConfig
    from onceflow.group.driver import (
        GroupDependencies as GroupDependencies,
        GroupDriver as GroupDriver,
        GroupProblem as GroupProblem,
    )
    from onceflow.group.events import (
        CommitRequest as CommitRequest,
        EmptinessStored as EmptinessStored,
        JoinRequest as JoinRequest,
        JoinResult as JoinResult,
        MemberIdentity as MemberIdentity,
        OffsetEntry as OffsetEntry,
        OffsetQuery as OffsetQuery,
        SyncRequest as SyncRequest,
        SyncResult as SyncResult,
        TxnCommitRequest as TxnCommitRequest,
    )
    from onceflow.group.offsets import (
        FoundOffset as FoundOffset,
        FoundOffsets as FoundOffsets,
        OffsetRecord as OffsetRecord,
        check_commit as check_commit,
        check_delete as check_delete,
        check_txn_commit as check_txn_commit,
        is_metadata_too_long as is_metadata_too_long,
        look_up as look_up,
    )
    from onceflow.group.offsets_log import (
        AppendTicket as AppendTicket,
        OffsetsLog as OffsetsLog,
        failure_code as failure_code,
        ignore as ignore,
    )
    from onceflow.group.persistence import empty_value_of as empty_value_of
    from onceflow.group.records import OffsetKey as OffsetKey, OffsetValue as OffsetValue
    from onceflow.group.state import (
        Group as Group,
        GroupState as GroupState,
        MemberMetadata as MemberMetadata,
        Protocol as Protocol,
    )
    from onceflow.group.timers import CallLater as CallLater
else:
    __getattr__ = door(
        __name__,
        {
            "config": "GroupConfig",
            "driver": "GroupDependencies GroupDriver GroupProblem",
            "events": "CommitRequest EmptinessStored JoinRequest JoinResult "
            "MemberIdentity OffsetEntry OffsetQuery SyncRequest SyncResult "
            "TxnCommitRequest",
            "offsets": "FoundOffset FoundOffsets OffsetRecord check_commit check_delete "
            "check_txn_commit is_metadata_too_long look_up",
            "offsets_log": "AppendTicket OffsetsLog failure_code ignore",
            "persistence": "empty_value_of",
            "records": "OffsetKey OffsetValue",
            "state": "Group GroupState MemberMetadata Protocol",
            "timers": "CallLater",
        },
    )
