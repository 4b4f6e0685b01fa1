"""Which partition logs there are, and `apply`, which does what a journal entry says.

The store creates, deletes and moves log starts through `apply`; recovery does so too, through
`replay`, which refuses an entry that does not fit. Appends and layouts have short ways beside it:
the store appends to the log itself, since it has the header already, and `Replay` appends in runs.
What an entry does there has to stay what `apply` does, or a restart would not find what was there.
"""

from __future__ import annotations

from onceflow.errors import LogCorrupt, LogExists, UnknownLog
from onceflow.log.config import LogConfig
from onceflow.log.journal import EntryKind, JournalEntry, read_layout
from onceflow.log.partition_log import PartitionLog
from onceflow.log.segments import OpenFiles
from onceflow.records import read_header
from onceflow.runtime import Disk
from onceflow.types import LogId


class Catalog:
    """The logs as admitted: they include what the journal has not made durable yet."""

    def __init__(self, disk: Disk, files: OpenFiles, config: LogConfig) -> None:
        self._disk = disk
        self._files = files
        self._config = config
        self.logs: dict[LogId, PartitionLog] = {}

    def close_files(self) -> None:
        """The store is over."""
        for log in self.logs.values():
            log.close_files()
        self._files.close()

    def get(self, log_id: LogId) -> PartitionLog:
        log = self.logs.get(log_id)
        if log is None:
            raise UnknownLog(f"no log {log_id}")
        return log

    def apply(self, entry: JournalEntry) -> PartitionLog:
        """Applies the entry in memory and page cache; returns the log it changed."""
        match entry.kind:
            case EntryKind.APPEND:
                log = self.get(entry.log_id)
                log.append(read_header(entry.payload), entry.payload)
            case EntryKind.CREATE:
                log = self._create(entry.log_id, bytes(entry.payload).decode())
            case EntryKind.DELETE:
                log = self.get(entry.log_id)
                del self.logs[entry.log_id]
                log.is_deleted = True
            case EntryKind.LOG_START:
                log = self.get(entry.log_id)
                log.advance_start(entry.offset)
            case EntryKind.LAYOUT:
                log = self.get(entry.log_id)
                log.layout = read_layout(entry.payload)
                log.config = log.config.laid_out(log.layout)
        return log

    def _create(self, log_id: LogId, topic: str) -> PartitionLog:
        if log_id in self.logs:
            raise LogExists(f"log {topic}-{log_id.partition} ({log_id}) exists already")
        log = PartitionLog.create(self._disk, self._files, log_id, topic, self._config)
        self.logs[log_id] = log
        return log

    def replay(self, entry: JournalEntry) -> PartitionLog:
        """`apply`, for an entry read back: one that does not fit is damage, not a bad request."""
        log = self.logs.get(entry.log_id)
        fits = (log is None) == (entry.kind is EntryKind.CREATE)
        if log is not None and entry.kind is EntryKind.APPEND:
            fits = entry.offset == log.end_offset
        if not fits:
            end = "absent" if log is None else f"at offset {log.end_offset}"
            raise LogCorrupt(
                f"the journal says {entry.kind.name} at offset {entry.offset} of log "
                f"{entry.log_id}, which is {end}: checkpoint and journal do not belong together"
            )
        return self.apply(entry)
