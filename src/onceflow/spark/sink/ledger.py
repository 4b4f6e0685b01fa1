"""What was committed last, kept where it is committed: in the transaction of the batch itself.

An entry is the metadata of an offset commit on a partition without records, in a group of its
own. Once InitProducerId has ended whatever was open, the entry says for sure whether a batch was
committed; `decide` says what follows, as one table. How a ledger begins is the second half.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from onceflow.spark.errors import IdentityChanged, LedgerConflict, LedgerMalformed, SinkError
from onceflow.spark.sink.identity import Files

KIND: Final = "onceflow ledger"
FORMAT: Final = 1
MOST_BEGUN: Final = 8
"""So many queries that have begun a ledger are kept in it; brokers take 4096 characters."""

SURELY_KEPT_MS: Final = 3600 * 1000
"""How long offsets are kept, however brokers are configured: no operator lets groups lose them
within the hour, because a consumer that is down for that long would then read everything again."""

_SHORT_MS: Final = 24 * 3600 * 1000
"""For how long offsets are taken to be kept when brokers do not say: what they kept them for in
the oldest releases."""


class WriterEpoch(NamedTuple):
    """The epoch of a producer, in which one batch was written."""

    producer_id: int
    producer_epoch: int


class LedgerEntry(NamedTuple):
    """A batch that was committed, or the mark that a query begins with the batch behind it."""

    query_id: str
    batch_id: int
    digest: str
    """Of the source offsets at which the batch ends."""
    rows: int
    writer: WriterEpoch
    is_begun: bool = False
    """Nothing was committed: the query has only begun its ledger, to write the next batch."""
    over: LedgerEntry | None = None
    """What the ledger had when it was begun: others that had only begun it, the newest first, and
    behind them the batch that still is the last one that was committed under this name."""

    @classmethod
    def begun(cls, batch: Planned, writer: WriterEpoch, entry: LedgerEntry | None) -> LedgerEntry:
        """Before that batch is written; `entry` is what the ledger has by then."""
        over = last_batch(entry)
        # A query whose entry were left out would take its ledger for deleted.
        others = [each for each in begun_entries(entry) if each.query_id != batch.query_id]
        for other in reversed(others[: MOST_BEGUN - 1]):
            over = other._replace(over=over)
        return cls(batch.query_id, batch.batch_id - 1, "", 0, writer, True, over)

    def to_metadata(self) -> str:
        return json.dumps(self._fields_of_json(), separators=(",", ":"))

    def _fields_of_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "kind": KIND,
            "format": FORMAT,
            "query": self.query_id,
            "batch": self.batch_id,
            "digest": self.digest,
            "rows": self.rows,
            "writer": self.writer,
        }
        if self.is_begun:
            fields["over"] = None if self.over is None else self.over._fields_of_json()
        return fields

    @classmethod
    def from_metadata(cls, text: str) -> LedgerEntry:
        """Raises `LedgerMalformed`."""
        try:
            entry = cls._of_json(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerMalformed(
                f"the ledger holds {text!r}, which this release cannot read ({error}): "
                "another application commits offsets in the ledger's group; give the query another "
                "name"
            ) from error
        return entry

    @classmethod
    def _of_json(cls, found: Any) -> LedgerEntry:
        if found["kind"] != KIND or found["format"] != FORMAT:
            raise ValueError("another kind or format")
        writer = WriterEpoch(*found["writer"])
        fields = found["query"], found["batch"], found["digest"], found["rows"]
        if [type(field) for field in (*fields, *writer)] != [str, int, str, int, int, int]:
            raise TypeError("fields of a wrong type")
        over = found.get("over")
        return cls(*fields, writer, "over" in found, None if over is None else cls._of_json(over))


def _chain(entry: LedgerEntry | None) -> Iterator[LedgerEntry]:
    while entry is not None:
        yield entry
        entry = entry.over


def begun_entries(entry: LedgerEntry | None) -> list[LedgerEntry]:
    """Of all queries that have begun the ledger since its last batch, the newest first."""
    return [each for each in _chain(entry) if each.is_begun]


def last_batch(entry: LedgerEntry | None) -> LedgerEntry | None:
    """The last batch that any query committed under this name."""
    return next((each for each in _chain(entry) if not each.is_begun), None)


def seen_by(query_id: str, entry: LedgerEntry | None) -> LedgerEntry | None:
    """What counts for a query: that another one has only begun means nothing to it."""
    own = (each for each in begun_entries(entry) if each.query_id == query_id)
    return next(own, last_batch(entry))


class Planned(NamedTuple):
    """A batch that Spark wants to have written."""

    query_id: str
    batch_id: int
    digest: str
    planned_ms: int
    """Since when Spark has meant to write it, by the wall clock of its driver; 0 where it did not
    say. How long ago that is counts when it is decided: the driver may have slept meanwhile."""
    known_ms: int | None = None
    """The ledger had an entry at that time or later, by the checkpoint; None where it never says
    so."""


class Finding(Enum):
    """How the ledger's entry and a planned batch are to each other."""

    OF_ANOTHER_QUERY = "the last batch was committed by another query"
    SAME = "this batch was committed"
    SAME_NUMBER = "a batch of this number was committed, with other source offsets"
    THE_ONE_BEFORE = "the batch before this one was committed last"
    LATER = "a later batch was committed already"
    GAP = "batches before this one are missing"
    DELETED = "the ledger is empty, and the checkpoint says that it had an entry of this query"
    NOTHING = "nothing was ever committed, or this batch would be known"
    FORGOTTEN = "nothing is known, and what was committed may have been forgotten since"


class LedgerVerdict(Enum):
    """What is to be done with a batch."""

    RUN = "write it"
    SKIP = "it is written: only drain it"
    REFUSE = "stop"


VERDICTS: Final[Mapping[Finding, LedgerVerdict]] = {
    Finding.OF_ANOTHER_QUERY: LedgerVerdict.REFUSE,
    Finding.SAME: LedgerVerdict.SKIP,
    Finding.SAME_NUMBER: LedgerVerdict.REFUSE,
    Finding.THE_ONE_BEFORE: LedgerVerdict.RUN,
    Finding.LATER: LedgerVerdict.REFUSE,
    Finding.GAP: LedgerVerdict.REFUSE,
    Finding.DELETED: LedgerVerdict.REFUSE,
    Finding.NOTHING: LedgerVerdict.RUN,
    Finding.FORGOTTEN: LedgerVerdict.REFUSE,
}

_ADVICE: Final[Mapping[Finding, str]] = {
    Finding.OF_ANOTHER_QUERY: (
        "Start it from that query's checkpoint, or give this one another name. If that checkpoint "
        "is lost: start the source at the offsets of the group (starting_offsets gives them) and "
        "pass continue_from_group=True"
    ),
    Finding.SAME_NUMBER: (
        "The checkpoint is not the one that the query went on with: restore that one"
    ),
    Finding.LATER: "The checkpoint is older than the output: restore the one that went on",
    Finding.GAP: (
        "The checkpoint went on without this sink: restore the older one, or give the query "
        "another name"
    ),
    Finding.DELETED: (
        "Its topic or its group was deleted, or this is another cluster. Look whether the last "
        "rows of the output are those of this batch. If they are not, delete all files "
        "onceflow-ledger*.json in the checkpoint and start the query again; if they are, start a "
        "new checkpoint at the source offsets behind them, under another name"
    ),
    Finding.FORGOTTEN: (
        "Look whether the last rows of the output are those of this batch. If they are not, start "
        "a new checkpoint at the source offsets of the output's last rows, under another name"
    ),
}


def find(
    entry: LedgerEntry | None, batch: Planned, now_ms: int, offsets_retention_ms: int
) -> Finding:
    """`entry` was read before `now_ms`; `offsets_retention_ms` is how long brokers keep the offsets
    of a group, 0 where they do not say."""
    if entry is None:
        is_young = now_ms - batch.planned_ms < (offsets_retention_ms or _SHORT_MS)
        if not is_young:
            return Finding.FORGOTTEN
        is_deleted = _must_be_there(batch, now_ms, offsets_retention_ms)
        return Finding.DELETED if is_deleted else Finding.NOTHING
    if entry.query_id != batch.query_id:
        return Finding.OF_ANOTHER_QUERY
    if entry.batch_id == batch.batch_id:
        return Finding.SAME if entry.digest == batch.digest else Finding.SAME_NUMBER
    if entry.batch_id == batch.batch_id - 1:
        return Finding.THE_ONE_BEFORE
    return Finding.LATER if entry.batch_id > batch.batch_id else Finding.GAP


def _must_be_there(batch: Planned, now_ms: int, offsets_retention_ms: int) -> bool:
    """Whether brokers would still have the entry that the checkpoint knows of, or that of the batch
    itself if it was committed."""
    if batch.known_ms is None:
        return False
    if offsets_retention_ms:
        return now_ms - batch.known_ms < offsets_retention_ms
    # However long ago that was: a batch is only written over an entry that is young enough, so it
    # may have been committed. Where the entry is older, the query has only rested.
    return is_surely_kept(batch.known_ms, batch.planned_ms)


def is_surely_kept(entry_ms: int, planned_ms: int) -> bool:
    """Whether an entry of that time was there when a batch was planned, however brokers are
    configured; not where the driver's clock went back in between."""
    return 0 <= planned_ms - entry_ms < SURELY_KEPT_MS


def decide(
    entry: LedgerEntry | None, batch: Planned, now_ms: int, offsets_retention_ms: int
) -> LedgerVerdict:
    """What to do with the batch; raises `LedgerConflict` where the table says to refuse."""
    finding = find(entry, batch, now_ms, offsets_retention_ms)
    verdict = VERDICTS[finding]
    if verdict is LedgerVerdict.REFUSE:
        raise refusal(finding, entry, batch)
    return verdict


def refusal(finding: Finding, entry: LedgerEntry | None, batch: Planned) -> LedgerConflict:
    """Why a batch must not be written, and what to do."""
    known = "nothing"
    if entry is not None:
        known = f"batch {entry.batch_id} of query {entry.query_id} (digest {entry.digest[:12]})"
    return LedgerConflict(
        f"batch {batch.batch_id} of query {batch.query_id} (digest {batch.digest[:12]}) is not "
        f"written: {finding.value}. The ledger has {known}. {_ADVICE[finding]}"
    )


# --- how a ledger begins -------------------------------------------------------------------------
#
# Before a batch is written the ledger has an entry, and a note in the checkpoint says so. An empty
# ledger was then deleted or has expired, and is not taken for one that never held anything. Where
# brokers do not say how long they keep offsets, the entry is a young one: an old one is begun anew.
#
# A ledger begins with an entry that is no batch, in a transaction of its own; only then is the note
# written into the checkpoint, and only then the batch. A driver may die at any point in between,
# twice even: what it leaves behind is a row of `STEPS`, which says how the next one goes on.
#
# Each note is a file of its own, named by what it says, so a driver that slept can neither
# overwrite nor delete its successor's note.


NOTE_KIND: Final = "onceflow sink's ledger"
NOTE_FORMAT: Final = 1
_PREFIX: Final = "onceflow-ledger"
_SUFFIX: Final = ".json"


class LedgerState(Enum):
    """What the ledger has of a query whose next batch is to be written."""

    EMPTY = "nothing: it is new, or brokers have forgotten it"
    BEGUN = "the entry that begins it, for this batch"
    COMMITTED = "the batch before"
    AGED = "the batch before, so old that brokers which hide their retention may have dropped it"


class LedgerNote(Enum):
    """What the checkpoint says of the ledger."""

    NONE = "nothing"
    EARLIER = "it had an entry before an earlier batch was written, or one that is older than this"
    THIS = "it has this entry since before this batch is written"


class LedgerStep(Enum):
    """What comes before the batch."""

    BEGIN = "give the ledger an entry"
    NOTE = "write down in the checkpoint that it has one"
    WRITE = "nothing: the batch can be written"


STEPS: Final[Mapping[tuple[LedgerState, LedgerNote], LedgerStep]] = {
    (LedgerState.EMPTY, LedgerNote.NONE): LedgerStep.BEGIN,
    (
        LedgerState.EMPTY,
        LedgerNote.EARLIER,
    ): LedgerStep.BEGIN,  # the query rested until it was forgotten
    (LedgerState.EMPTY, LedgerNote.THIS): LedgerStep.BEGIN,
    (LedgerState.BEGUN, LedgerNote.NONE): LedgerStep.NOTE,
    (LedgerState.BEGUN, LedgerNote.EARLIER): LedgerStep.NOTE,
    (LedgerState.BEGUN, LedgerNote.THIS): LedgerStep.WRITE,
    (
        LedgerState.COMMITTED,
        LedgerNote.NONE,
    ): LedgerStep.NOTE,  # a release that kept no notes wrote it
    (LedgerState.COMMITTED, LedgerNote.EARLIER): LedgerStep.WRITE,
    (LedgerState.COMMITTED, LedgerNote.THIS): LedgerStep.WRITE,
    (LedgerState.AGED, LedgerNote.NONE): LedgerStep.BEGIN,
    (LedgerState.AGED, LedgerNote.EARLIER): LedgerStep.BEGIN,
    (LedgerState.AGED, LedgerNote.THIS): LedgerStep.BEGIN,
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
) -> LedgerStep:
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

    def next_step(
        self, entry: LedgerEntry | None, batch_id: int, *, is_retention_known: bool
    ) -> LedgerStep:
        """`entry` is what the ledger has of this query; `is_retention_known`: brokers say how long
        they keep it."""
        state = self._state(entry, batch_id, is_retention_known)
        return next_step(state, self._since, batch_id, self._planned_ms(batch_id))

    def _state(
        self, entry: LedgerEntry | None, batch_id: int, is_retention_known: bool
    ) -> LedgerState:
        if entry is None:
            return LedgerState.EMPTY
        if entry.is_begun:
            return LedgerState.BEGUN
        if is_retention_known:
            return LedgerState.COMMITTED
        is_young = is_surely_kept(self._planned_ms(batch_id - 1), self._planned_ms(batch_id))
        return LedgerState.COMMITTED if is_young else LedgerState.AGED

    def write_note(self, entry: LedgerEntry, batch_id: int) -> None:
        """Writes down that the ledger has this entry before the batch is written."""
        # An entry is younger than the plan of the batch that it begins, or is.
        planned = batch_id if entry.is_begun else batch_id - 1
        since = LedgerSince(batch_id, self._planned_ms(planned))
        keep_since(self._files, since)
        # Only after the new note is there: a driver that dies in between leaves one note too many,
        # where the other order would leave none, and a deleted ledger would be taken for a new one.
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
    # A note that has just disappeared belonged to another driver, which has written a newer one.
    return {name: _parsed(name, text) for name, text in texts.items() if text is not None}


def _parsed(name: str, text: str) -> LedgerSince:
    try:
        note = json.loads(text)
        if note["kind"] != NOTE_KIND or note["format"] != NOTE_FORMAT:
            raise ValueError("another kind or format")
        return LedgerSince(int(note["since"]), int(note["entry_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise IdentityChanged(
            f"the checkpoint's file {name} cannot be read ({error}): it was damaged, or written by "
            "a newer release. If it was damaged, delete it and start the query again: it only "
            "serves to notice that the ledger was deleted, so look first whether its topic and "
            "group are still there"
        ) from error


def keep_since(files: Files, since: LedgerSince) -> None:
    """Writes the note; another driver may have written the same one first."""
    fields = {
        "kind": NOTE_KIND,
        "format": NOTE_FORMAT,
        "since": since.batch_id,
        "entry_ms": since.entry_ms,
    }
    try:
        files.create(since.file, json.dumps(fields))
    except SinkError:
        if files.read(since.file) is None:
            raise
