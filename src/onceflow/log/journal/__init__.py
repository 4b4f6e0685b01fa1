"""One ordered journal for all partitions: an append is durable when its group of entries is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.log.journal.format import (
        ENTRY_OVERHEAD as ENTRY_OVERHEAD,
        EntryKind as EntryKind,
        JournalEntry as JournalEntry,
        key_log_id as key_log_id,
        log_key as log_key,
        read_layout as read_layout,
        write_layout as write_layout,
    )
    from onceflow.log.journal.journal import (
        Journal as Journal,
        JournalStart as JournalStart,
        JournalTotals as JournalTotals,
        Ticket as Ticket,
    )
    from onceflow.log.journal.reader import (
        JournalChain as JournalChain,
        JournalGroup as JournalGroup,
    )
    from onceflow.log.journal.ring import DIRECTORY as DIRECTORY, JournalConfig as JournalConfig
else:
    __getattr__ = door(
        __name__,
        {
            "format": "ENTRY_OVERHEAD EntryKind JournalEntry key_log_id log_key "
            "read_layout write_layout",
            "journal": "Journal JournalStart JournalTotals Ticket",
            "reader": "JournalChain JournalGroup",
            "ring": "DIRECTORY JournalConfig",
        },
    )
