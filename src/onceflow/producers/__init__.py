"""Idempotent and transactional producers as one partition sees them: a fold over batch headers.

Pure: no clock, no disk. `ProducerTable` holds what a partition knows, `judge` says whether a
producer may append a batch, `replay` builds a table from the bytes of a log, and `IdBlocks` claims
producer ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.producers.draft import SnapshotDraft as SnapshotDraft
    from onceflow.producers.ids import Block as Block, IdBlocks as IdBlocks, OpenBlock as OpenBlock
    from onceflow.producers.replaying import replay as replay
    from onceflow.producers.snapshot import SnapshotInvalid as SnapshotInvalid
    from onceflow.producers.state import (
        ProducerMemory as ProducerMemory,
        WrittenBatch as WrittenBatch,
        judge as judge,
        judge_marker as judge_marker,
    )
    from onceflow.producers.table import (
        OngoingTransaction as OngoingTransaction,
        ProducerTable as ProducerTable,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "draft": "SnapshotDraft",
            "ids": "Block IdBlocks OpenBlock",
            "replaying": "replay",
            "snapshot": "SnapshotInvalid",
            "state": "ProducerMemory WrittenBatch judge judge_marker",
            "table": "OngoingTransaction ProducerTable",
        },
    )
