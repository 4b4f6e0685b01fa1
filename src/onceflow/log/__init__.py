"""Partition logs that never lose an acknowledged byte.

`store.LogStore` is the front door. docs/internals/LOG.md explains how it keeps its promise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.log.checkpoint import Durability as Durability
    from onceflow.log.config import DAY_MS as DAY_MS, LogConfig as LogConfig
    from onceflow.log.journal import (
        JournalConfig as JournalConfig,
        JournalTotals as JournalTotals,
        Ticket as Ticket,
    )
    from onceflow.log.partition_log import PartitionLog as PartitionLog, Span as Span
    from onceflow.log.quarantine import (
        BLAMELESS as BLAMELESS,
        FailedJob as FailedJob,
        Quarantine as Quarantine,
    )
    from onceflow.log.segments import segment_base as segment_base
    from onceflow.log.side_files import SideFiles as SideFiles
    from onceflow.log.store import LogStore as LogStore, StoreConfig as StoreConfig
    from onceflow.log.urgency import Purpose as Purpose
else:
    __getattr__ = door(
        __name__,
        {
            "checkpoint": "Durability",
            "config": "DAY_MS LogConfig",
            "journal": "JournalConfig JournalTotals Ticket",
            "partition_log": "PartitionLog Span",
            "quarantine": "BLAMELESS FailedJob Quarantine",
            "segments": "segment_base",
            "side_files": "SideFiles",
            "store": "LogStore StoreConfig",
            "urgency": "Purpose",
        },
    )
