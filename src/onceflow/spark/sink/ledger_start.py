"""Before a batch is written its ledger has an entry, and the checkpoint says so: then an empty one
was deleted, or forgotten by age, and is not taken for one that never had anything. Where brokers
do not say after what age, it has a young one: an old one is begun anew.

A ledger is begun with an entry that is no batch, in a transaction of its own; only then a note is
written into the checkpoint, and only then the batch. A driver may die at any point in between, also
twice: what it leaves behind is a row of `STEPS`, which says how the next one goes on.

Each note is a file of its own, named by what it says. A driver that slept can neither write over
nor delete that of its successor, whatever it was about to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from onceflow.spark.errors import IdentityChanged, SinkError
from onceflow.spark.sink.identity import Files
from onceflow.spark.sink.ledger import Entry, is_surely_kept

KIND: Final = "onceflow sink's ledger"
FORMAT: Final = 1
_PREFIX: Final = "onceflow-ledger"
_SUFFIX: Final = ".json"


class LedgerState(Enum):
    """What the ledger has of a query whose next batch is to be written."""

    EMPTY = "nothing: it is new, or brokers have forgotten it"
    BEGUN = "the entry that begins it, for this batch"
    COMMITTED = "the batch before"
    AGED = "the batch before, and nobody says how soon brokers forget one that is so old"


class LedgerNote(Enum):
    """What the checkpoint says of the ledger."""

    NONE = "nothing"
    EARLIER = "it had an entry before an earlier batch was written, or one that is older than this"
    THIS = "it has this entry since before this batch is written"


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
    (LedgerState.AGED, LedgerNote.NONE): Step.BEGIN,
    (LedgerState.AGED, LedgerNote.EARLIER): Step.BEGIN,
    (LedgerState.AGED, LedgerNote.THIS): Step.BEGIN,
}


class LedgerSince(NamedTuple):
    """Before batch `batch_id` was written, the ledger had an entry of `entry_ms` or later, by the
    wall clock of the driver."""

    batch_id: int
    entry_ms: int

    @property
    def file(self) -> str:
        return f"{_PREFIX}-{self.batch_id}-{self.entry_ms}{_SUFFIX}"


def next_step(
    state: LedgerState, since: LedgerSince | None, batch_id: int, planned_ms: int
) -> Step:
    """For a batch that the ledger allows to be written; `planned_ms`: when it was planned."""
    note = LedgerNote.NONE
    if since is not None and since.batch_id <= batch_id:
        # What begins the ledger is younger than the plan: an older note is of an entry before.
        oldest_ms = planned_ms if state is LedgerState.BEGUN else 0
        is_this = since.batch_id == batch_id and since.entry_ms >= oldest_ms
        note = LedgerNote.THIS if is_this else LedgerNote.EARLIER
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
            self._since = read_since(self._files, batch_id)
        if self._since is None or batch_id < self._since.batch_id:
            return None
        if batch_id == self._since.batch_id:
            return self._since.entry_ms
        return self._planned_ms(batch_id - 1)

    def next_step(self, entry: Entry | None, batch_id: int, *, is_age_told: bool) -> Step:
        """`entry`: what the ledger has of this query; `is_age_told`: brokers say how long they keep
        it."""
        state = self._state(entry, batch_id, is_age_told)
        return next_step(state, self._since, batch_id, self._planned_ms(batch_id))

    def _state(self, entry: Entry | None, batch_id: int, is_age_told: bool) -> LedgerState:
        if entry is None:
            return LedgerState.EMPTY
        if entry.is_begun:
            return LedgerState.BEGUN
        if is_age_told:
            return LedgerState.COMMITTED
        is_young = is_surely_kept(self._planned_ms(batch_id - 1), self._planned_ms(batch_id))
        return LedgerState.COMMITTED if is_young else LedgerState.AGED

    def note(self, entry: Entry, batch_id: int) -> None:
        """Writes down that the ledger has this entry before the batch is written."""
        # An entry is younger than the plan of the batch that it begins, or is.
        planned = batch_id if entry.is_begun else batch_id - 1
        since = LedgerSince(batch_id, self._planned_ms(planned))
        keep_since(self._files, since)
        # Not before the new one is there: whoever dies in between leaves one note too many.
        notes = _read_notes(self._files)
        for name in [name for name, each in notes.items() if each < since]:
            self._files.delete(name)
        self._since = _newest(notes, batch_id)

    def _planned_ms(self, batch_id: int) -> int:
        if batch_id not in self._plans:
            self._plans[batch_id] = self._look_up(batch_id)
        return self._plans[batch_id]


def read_since(files: Files, batch_id: int) -> LedgerSince | None:
    """The newest note for this batch or one before. None when the checkpoint does not say; raises
    `IdentityChanged` for what this release cannot read."""
    return _newest(_read_notes(files), batch_id)


def _newest(notes: Mapping[str, LedgerSince], batch_id: int) -> LedgerSince | None:
    return max((each for each in notes.values() if each.batch_id <= batch_id), default=None)


def _read_notes(files: Files) -> dict[str, LedgerSince]:
    """By the names of their files."""
    texts = {name: files.read(name) for name in files.names(_PREFIX) if name.endswith(_SUFFIX)}
    # One that has just gone is that of another driver, who has a newer one.
    return {name: _parsed(name, text) for name, text in texts.items() if text is not None}


def _parsed(name: str, text: str) -> LedgerSince:
    try:
        found = json.loads(text)
        if found["kind"] != KIND or found["format"] != FORMAT:
            raise ValueError("another kind or format")
        return LedgerSince(int(found["since"]), int(found["entry_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise IdentityChanged(
            f"the checkpoint's file {name} cannot be read ({error}): it was damaged, or written by "
            "a newer release. If it was damaged, delete it and start the query again: it only "
            "serves to notice that somebody has deleted the ledger, so look first whether the "
            "ledger's topic and group are still there"
        ) from error


def keep_since(files: Files, since: LedgerSince) -> None:
    """Another driver may have been faster, who says the same."""
    fields = {"kind": KIND, "format": FORMAT, "since": since.batch_id, "entry_ms": since.entry_ms}
    try:
        files.create(since.file, json.dumps(fields))
    except SinkError:
        if files.read(since.file) is None:
            raise
