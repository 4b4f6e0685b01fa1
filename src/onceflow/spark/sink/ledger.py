"""What was committed last, kept where it is committed: in the transaction of the batch itself.

An entry is the metadata of an offset commit on a partition that nobody writes to, in a group of its
own. After Init has settled whatever was open, it tells for sure whether a batch was committed;
`decide` says what follows, as one table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from onceflow.spark.errors import LedgerConflict, LedgerMalformed

KIND: Final = "onceflow ledger"
FORMAT: Final = 1
MOST_BEGUN: Final = 8
"""So many queries that have begun a ledger are kept in it; brokers take 4096 characters."""

SURELY_KEPT_MS: Final = 3600 * 1000
"""For how long offsets are kept whatever brokers are told: nobody lets groups lose them within the
hour, because a consumer that is down for that long would then read everything again."""

_SHORT_MS: Final = 24 * 3600 * 1000
"""For how long offsets are taken to be kept when brokers do not say: what they kept them for in
the oldest releases."""


class Writer(NamedTuple):
    """The epoch of a producer, in which one batch was written."""

    producer_id: int
    producer_epoch: int


class Entry(NamedTuple):
    """A batch that was committed, or the mark that a query begins with the batch behind it."""

    query_id: str
    batch_id: int
    digest: str
    """Of the source offsets at which the batch ends."""
    rows: int
    writer: Writer
    is_begun: bool = False
    """Nothing was committed: the query has only begun its ledger, to write the next batch."""
    over: Entry | None = None
    """What the ledger had when it was begun: others that had only begun it, the newest first, and
    behind them the batch that still is the last one that was committed under this name."""

    @classmethod
    def begun(cls, batch: Planned, writer: Writer, found: Entry | None) -> Entry:
        """Before that batch is written; `found` is what the ledger has by then."""
        over = last_batch(found)
        # A query whose entry were left out would take its ledger for deleted.
        others = [each for each in begun_entries(found) if each.query_id != batch.query_id]
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
    def from_metadata(cls, text: str) -> Entry:
        """Raises `LedgerMalformed`."""
        try:
            entry = cls._of_json(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerMalformed(
                f"the ledger holds {text!r}, which this release cannot read ({error}): somebody "
                "else commits offsets in the ledger's group; give the query another name"
            ) from error
        return entry

    @classmethod
    def _of_json(cls, found: Any) -> Entry:
        if found["kind"] != KIND or found["format"] != FORMAT:
            raise ValueError("another kind or format")
        writer = Writer(*found["writer"])
        fields = found["query"], found["batch"], found["digest"], found["rows"]
        if [type(field) for field in (*fields, *writer)] != [str, int, str, int, int, int]:
            raise TypeError("fields of a wrong type")
        over = found.get("over")
        return cls(*fields, writer, "over" in found, None if over is None else cls._of_json(over))


def _chain(entry: Entry | None) -> Iterator[Entry]:
    while entry is not None:
        yield entry
        entry = entry.over


def begun_entries(entry: Entry | None) -> list[Entry]:
    """Of all queries that have begun the ledger since its last batch, the newest first."""
    return [each for each in _chain(entry) if each.is_begun]


def last_batch(entry: Entry | None) -> Entry | None:
    """The last one that was committed under a name, of whichever query."""
    return next((each for each in _chain(entry) if not each.is_begun), None)


def seen_by(query_id: str, entry: Entry | None) -> Entry | None:
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


class Verdict(Enum):
    """What is to be done with a batch."""

    RUN = "write it"
    SKIP = "it is written: only drain it"
    REFUSE = "stop"


VERDICTS: Final[Mapping[Finding, Verdict]] = {
    Finding.OF_ANOTHER_QUERY: Verdict.REFUSE,
    Finding.SAME: Verdict.SKIP,
    Finding.SAME_NUMBER: Verdict.REFUSE,
    Finding.THE_ONE_BEFORE: Verdict.RUN,
    Finding.LATER: Verdict.REFUSE,
    Finding.GAP: Verdict.REFUSE,
    Finding.DELETED: Verdict.REFUSE,
    Finding.NOTHING: Verdict.RUN,
    Finding.FORGOTTEN: Verdict.REFUSE,
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


def find(entry: Entry | None, batch: Planned, now_ms: int, forgets_after_ms: int) -> Finding:
    """`entry` was read before `now_ms`; `forgets_after_ms`: how long brokers keep the offsets of a
    group, 0 where they do not say."""
    if entry is None:
        is_young = now_ms - batch.planned_ms < (forgets_after_ms or _SHORT_MS)
        if not is_young:
            return Finding.FORGOTTEN
        is_deleted = _must_be_there(batch, now_ms, forgets_after_ms)
        return Finding.DELETED if is_deleted else Finding.NOTHING
    if entry.query_id != batch.query_id:
        return Finding.OF_ANOTHER_QUERY
    if entry.batch_id == batch.batch_id:
        return Finding.SAME if entry.digest == batch.digest else Finding.SAME_NUMBER
    if entry.batch_id == batch.batch_id - 1:
        return Finding.THE_ONE_BEFORE
    return Finding.LATER if entry.batch_id > batch.batch_id else Finding.GAP


def _must_be_there(batch: Planned, now_ms: int, forgets_after_ms: int) -> bool:
    """Whether brokers would still have the entry that the checkpoint knows of, or that of the batch
    itself if it was committed."""
    if batch.known_ms is None:
        return False
    if forgets_after_ms:
        return now_ms - batch.known_ms < forgets_after_ms
    # However long ago that was: a batch is only written over an entry that is young enough, so it
    # may have been committed. Where the entry is older, the query has only rested.
    return is_surely_kept(batch.known_ms, batch.planned_ms)


def is_surely_kept(entry_ms: int, planned_ms: int) -> bool:
    """Whether an entry of that time was there when a batch was planned, whatever brokers are told;
    not where the driver's clock went back in between."""
    return 0 <= planned_ms - entry_ms < SURELY_KEPT_MS


def decide(entry: Entry | None, batch: Planned, now_ms: int, forgets_after_ms: int) -> Verdict:
    """What to do with the batch; raises `LedgerConflict` where the table says to refuse."""
    finding = find(entry, batch, now_ms, forgets_after_ms)
    verdict = VERDICTS[finding]
    if verdict is Verdict.REFUSE:
        raise refusal(finding, entry, batch)
    return verdict


def refusal(finding: Finding, entry: Entry | None, batch: Planned) -> LedgerConflict:
    """Why a batch must not be written, and what to do."""
    known = "nothing"
    if entry is not None:
        known = f"batch {entry.batch_id} of query {entry.query_id} (digest {entry.digest[:12]})"
    return LedgerConflict(
        f"batch {batch.batch_id} of query {batch.query_id} (digest {batch.digest[:12]}) is not "
        f"written: {finding.value}. The ledger has {known}. {_ADVICE[finding]}"
    )
