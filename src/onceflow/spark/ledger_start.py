"""Before a batch is written its ledger has an entry, and the checkpoint says so: then an empty one
was deleted, or forgotten by age, and is not taken for one that never had anything.

A ledger is begun with an entry that is no batch, in a transaction of its own; only then the file in
the checkpoint is written, and only then the batch. A driver may die at any point in between, also
twice: what it leaves behind is a row of `STEPS`, which says how the next one goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from onceflow.spark.identity import Files
from onceflow.spark.ledger import Entry
from onceflow.spark.sink_errors import IdentityChanged, SinkError

KIND: Final = "onceflow sink's ledger"
FORMAT: Final = 1
FILE: Final = "onceflow-ledger.json"


class LedgerState(Enum):
    """What the ledger has of a query whose next batch is to be written."""

    EMPTY = "nothing: it is new, or brokers have forgotten it"
    BEGUN = "the entry that begins it, for this batch"
    COMMITTED = "the batch before"


class LedgerNote(Enum):
    """What the checkpoint says of the ledger."""

    NONE = "nothing"
    EARLIER = "it has had an entry since before an earlier batch was written"
    THIS = "it has an entry since before this batch is written"


class Step(Enum):
    """What comes before the batch."""

    BEGIN = "give the ledger an entry"
    NOTE = "write down in the checkpoint that it has one"
    WRITE = "nothing: the batch can be written"


STEPS: Final[Mapping[tuple[LedgerState, LedgerNote], Step]] = {
    (LedgerState.EMPTY, LedgerNote.NONE): Step.BEGIN,
    (LedgerState.EMPTY, LedgerNote.EARLIER): Step.BEGIN,  # the query rested until it was forgotten
    (LedgerState.EMPTY, LedgerNote.THIS): Step.BEGIN,
    (LedgerState.BEGUN, LedgerNote.NONE): Step.NOTE,
    (LedgerState.BEGUN, LedgerNote.EARLIER): Step.NOTE,
    (LedgerState.BEGUN, LedgerNote.THIS): Step.WRITE,
    (LedgerState.COMMITTED, LedgerNote.NONE): Step.NOTE,  # a release that kept no notes wrote it
    (LedgerState.COMMITTED, LedgerNote.EARLIER): Step.WRITE,
    (LedgerState.COMMITTED, LedgerNote.THIS): Step.WRITE,
}


class LedgerSince(NamedTuple):
    """Before batch `batch_id` was written, the ledger had an entry of `entry_ms` or later, by the
    wall clock of the driver."""

    batch_id: int
    entry_ms: int


def next_step(entry: Entry | None, since: LedgerSince | None, batch_id: int) -> Step:
    """For a batch that the ledger allows to be written. `entry` is what it has of this query."""
    state = LedgerState.EMPTY
    if entry is not None:
        state = LedgerState.BEGUN if entry.is_begun else LedgerState.COMMITTED
    note = LedgerNote.NONE
    if since is not None and since.batch_id <= batch_id:
        note = LedgerNote.THIS if since.batch_id == batch_id else LedgerNote.EARLIER
    return STEPS[state, note]


class LedgerStart:
    """The note in the checkpoint of one query. `planned_ms` looks up when a batch was planned."""

    def __init__(self, files: Files, planned_ms: Callable[[int], int]) -> None:
        self._files = files
        self._look_up = planned_ms
        self._plans: dict[int, int] = {}
        """When batches were planned: that which is to be written, and the one before."""
        self._since: LedgerSince | None = None

    def take_up(self, batch_id: int, planned_ms: int) -> None:
        """This batch is to be written."""
        self._plans = {key: ms for key, ms in self._plans.items() if key == batch_id - 1}
        self._plans[batch_id] = planned_ms

    def known_ms(self, batch_id: int) -> int | None:
        """The ledger had an entry of that time or later before this batch was written; None where
        the checkpoint does not say so. A batch is planned when the one before is in the ledger."""
        if self._since is None:
            self._since = read_since(self._files)
        if self._since is None or batch_id < self._since.batch_id:
            return None
        if batch_id == self._since.batch_id:
            return self._since.entry_ms
        return self._planned_ms(batch_id - 1)

    def next_step(self, entry: Entry | None, batch_id: int) -> Step:
        return next_step(entry, self._since, batch_id)

    def note(self, entry: Entry, batch_id: int) -> None:
        """Writes down that the ledger has this entry before the batch is written."""
        # An entry is younger than the plan of the batch that it begins, or is.
        planned = batch_id if entry.is_begun else batch_id - 1
        since = LedgerSince(batch_id, self._planned_ms(planned))
        found = read_since(self._files)
        if found is not None and found.batch_id < batch_id:
            # Whoever dies here leaves no note, and an entry: the next driver writes it.
            self._files.delete(FILE)
            found = None
        self._since = found or keep_since(self._files, since)

    def _planned_ms(self, batch_id: int) -> int:
        if batch_id not in self._plans:
            self._plans[batch_id] = self._look_up(batch_id)
        return self._plans[batch_id]


def read_since(files: Files) -> LedgerSince | None:
    """None when the checkpoint does not say; raises `IdentityChanged` for what this release cannot
    read."""
    text = files.read(FILE)
    if text is None:
        return None
    try:
        found = json.loads(text)
        if found["kind"] != KIND or found["format"] != FORMAT:
            raise ValueError("another kind or format")
        return LedgerSince(int(found["since"]), int(found["entry_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise IdentityChanged(
            f"the checkpoint's file {FILE} cannot be read ({error}): it was damaged, or written by "
            "a newer release"
        ) from error


def keep_since(files: Files, since: LedgerSince) -> LedgerSince:
    """What the checkpoint says now: another driver may have been faster, who knows the same."""
    fields = {"kind": KIND, "format": FORMAT, "since": since.batch_id, "entry_ms": since.entry_ms}
    try:
        files.create(FILE, json.dumps(fields))
    except SinkError:
        found = read_since(files)
        if found is None:
            raise
        return found
    return since
