"""Applies the journal's entries to the logs again, in their order.

Changes of the catalog go one by one through `Catalog.replay`. Appends, of which there are a million
a gigabyte, gather in runs, one for each log, and go to its file many at a time: between two appends
to one log, those to others make no difference. Before anything else is done all runs are written.
"""

from __future__ import annotations

from onceflow.log.catalog import Catalog
from onceflow.log.journal import EntryKind, JournalEntry, JournalGroup, key_log_id
from onceflow.log.partition_log import PartitionLog
from onceflow.log.segments import Facts, read_facts

_GATHERED_BYTES = 4 << 20
_APPEND = int(EntryKind.APPEND)


class _Run:
    """Batches that go to the end of one log."""

    __slots__ = ("batches", "data", "log", "next_offset")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.next_offset = log.end_offset
        self.batches: list[Facts] = []
        self.data: list[memoryview] = []


class Replay:
    """Feed it groups, then `finish`. `deleted` are logs whose files are still there."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._runs: dict[bytes, _Run] = {}
        self._gathered = 0
        self.deleted: list[PartitionLog] = []
        self.groups = 0
        self.entries = 0
        self.bytes = 0

    def apply(self, group: JournalGroup) -> None:
        """Applies a group; raises `LogCorrupt` at an entry that does not fit the state before."""
        self.groups += 1
        self.entries += group.header.entry_count
        runs, data = self._runs, group.data
        for kind, key, offset, start, end in group.entries():
            payload = data[start:end]
            self.bytes += end - start
            run = runs.get(key)
            if kind == _APPEND and run is not None and offset == run.next_offset:
                facts = read_facts(payload)
                run.batches.append(facts)
                run.data.append(payload)
                run.next_offset = facts[2] + 1
                self._gathered += end - start
            else:
                self._other(JournalEntry(EntryKind(kind), key_log_id(key), offset, payload), key)
        if self._gathered > _GATHERED_BYTES:
            self.finish()

    def _other(self, entry: JournalEntry, key: bytes) -> None:
        """Applies all but an append that continues a run, also an entry that fits nothing."""
        # Runs first: an entry such as DELETE or LAYOUT must not overtake the appends before it.
        if entry.kind is not EntryKind.APPEND or key in self._runs:
            self.finish()
        log = self._catalog.replay(entry)
        if entry.kind is EntryKind.APPEND:
            self._runs[key] = _Run(log)
        elif entry.kind is EntryKind.DELETE:
            log.close_files()
            self.deleted.append(log)

    def finish(self) -> None:
        """Writes the gathered runs."""
        for run in self._runs.values():
            if run.batches:
                run.log.append_run(run.batches, run.data)
        self._runs.clear()
        self._gathered = 0
