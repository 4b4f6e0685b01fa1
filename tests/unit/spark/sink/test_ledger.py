"""The ledger's table, its entries, and what is read in Spark's offset log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from onceflow.spark.errors.sink import IdentityChanged, LedgerConflict, LedgerMalformed, SinkError
from onceflow.spark.sink.identity import FILE, SinkIdentity, check_identity, keep_identity
from onceflow.spark.sink.ledger import (
    MOST_BEGUN,
    STEPS,
    SURELY_KEPT_MS,
    VERDICTS,
    Finding,
    LedgerEntry,
    LedgerNote,
    LedgerSince,
    LedgerStart,
    LedgerState,
    LedgerStep,
    LedgerVerdict,
    Planned,
    WriterEpoch,
    begun_entries,
    decide,
    find,
    keep_since,
    last_batch,
    next_step,
    read_since,
    refusal,
    seen_by,
)
from onceflow.spark.sink.offset_log import OffsetLogUnreadable, read_offset_log
from onceflow.types import TopicPartition

HOUR_MS = 3600 * 1000
WEEK_MS = 7 * 24 * HOUR_MS
MINE, OTHER = "query-1", "query-2"
WRITER = WriterEpoch(7000, 3)


NOW_MS = 1_700_000_000_000


def planned(
    batch_id: int = 5, digest: str = "d5", age_ms: int = 0, known_for_ms: int | None = None
) -> Planned:
    known_ms = None if known_for_ms is None else NOW_MS - known_for_ms
    return Planned(MINE, batch_id, digest, NOW_MS - age_ms, known_ms)


@pytest.mark.parametrize(
    ("entry", "batch", "finding"),
    [
        (LedgerEntry(OTHER, 5, "d5", 1, WRITER), planned(), Finding.OF_ANOTHER_QUERY),
        (LedgerEntry(OTHER, 4, "d4", 1, WRITER), planned(), Finding.OF_ANOTHER_QUERY),
        (LedgerEntry(MINE, 5, "d5", 1, WRITER), planned(), Finding.SAME),
        (LedgerEntry(MINE, 5, "d5", 1, WRITER), planned(age_ms=2 * WEEK_MS), Finding.SAME),
        (LedgerEntry(MINE, 5, "other", 1, WRITER), planned(), Finding.SAME_NUMBER),
        (LedgerEntry(MINE, 4, "d4", 1, WRITER), planned(), Finding.THE_ONE_BEFORE),
        (LedgerEntry(MINE, 6, "d6", 1, WRITER), planned(), Finding.LATER),
        (LedgerEntry(MINE, 3, "d3", 1, WRITER), planned(), Finding.GAP),
        (None, planned(0), Finding.NOTHING),
        (None, planned(), Finding.NOTHING),
        (None, planned(age_ms=WEEK_MS - 1), Finding.NOTHING),
        (None, planned(age_ms=WEEK_MS), Finding.FORGOTTEN),
        (None, planned(0, age_ms=WEEK_MS), Finding.FORGOTTEN),
        (None, planned(known_for_ms=0), Finding.DELETED),
        (None, planned(known_for_ms=WEEK_MS - 1), Finding.DELETED),
        (None, planned(known_for_ms=WEEK_MS), Finding.NOTHING),  # a query that rested
        (None, planned(age_ms=WEEK_MS, known_for_ms=WEEK_MS), Finding.FORGOTTEN),
        (LedgerEntry(MINE, 4, "d4", 1, WRITER), planned(known_for_ms=0), Finding.THE_ONE_BEFORE),
    ],
)
def test_what_the_ledger_shows(entry: LedgerEntry | None, batch: Planned, finding: Finding) -> None:
    assert find(entry, batch, NOW_MS, WEEK_MS) is finding
    if VERDICTS[finding] is not LedgerVerdict.REFUSE:
        assert decide(entry, batch, NOW_MS, WEEK_MS) is VERDICTS[finding]
        return
    with pytest.raises(LedgerConflict, match=finding.value):
        decide(entry, batch, NOW_MS, WEEK_MS)


@pytest.mark.parametrize(
    ("batch", "finding"),
    [
        (planned(known_for_ms=SURELY_KEPT_MS), Finding.NOTHING),  # they may keep it that long
        (planned(known_for_ms=SURELY_KEPT_MS - 1), Finding.DELETED),
        (planned(known_for_ms=0), Finding.DELETED),
        (planned(known_for_ms=-HOUR_MS), Finding.NOTHING),  # its clock went back
        # A batch that was planned over a young entry may have been committed, however long ago.
        (planned(age_ms=20 * HOUR_MS, known_for_ms=20 * HOUR_MS), Finding.DELETED),
        (planned(age_ms=20 * HOUR_MS, known_for_ms=21 * HOUR_MS), Finding.NOTHING),
        (planned(age_ms=24 * HOUR_MS, known_for_ms=24 * HOUR_MS), Finding.FORGOTTEN),
        (planned(age_ms=24 * HOUR_MS - 1), Finding.NOTHING),
        (planned(age_ms=24 * HOUR_MS), Finding.FORGOTTEN),
    ],
)
def test_brokers_that_do_not_say_how_long_they_keep_offsets(
    batch: Planned, finding: Finding
) -> None:
    assert find(None, batch, NOW_MS, 0) is finding


def test_a_batch_ages_while_its_driver_sleeps_and_one_without_a_time_is_old() -> None:
    batch = planned()
    assert find(None, batch, NOW_MS + WEEK_MS - 1, WEEK_MS) is Finding.NOTHING
    assert find(None, batch, NOW_MS + WEEK_MS, WEEK_MS) is Finding.FORGOTTEN
    assert find(None, batch, NOW_MS - WEEK_MS, WEEK_MS) is Finding.NOTHING, "its clock went back"
    assert find(None, batch._replace(planned_ms=0), NOW_MS, WEEK_MS) is Finding.FORGOTTEN


def test_only_the_same_batch_is_skipped_and_only_the_next_one_run() -> None:
    by_verdict = {
        verdict: {f for f, v in VERDICTS.items() if v is verdict} for verdict in LedgerVerdict
    }
    assert by_verdict[LedgerVerdict.SKIP] == {Finding.SAME}
    assert by_verdict[LedgerVerdict.RUN] == {Finding.THE_ONE_BEFORE, Finding.NOTHING}
    assert VERDICTS.keys() == set(Finding)


def test_a_refusal_says_what_to_do() -> None:
    for finding, verdict in VERDICTS.items():
        if verdict is LedgerVerdict.REFUSE:
            text = str(refusal(finding, LedgerEntry(OTHER, 1, "abc", 2, WRITER), planned()))
            assert "batch 5" in text
            assert OTHER in text
            assert len(text) > 150, "no advice"


@given(st.text(), st.integers(0, 2**63 - 1), st.text(max_size=64), st.integers(0, 2**63 - 1))
def test_an_entry_is_read_back(query_id: str, batch_id: int, digest: str, rows: int) -> None:
    entry = LedgerEntry(query_id, batch_id, digest, rows, WriterEpoch(batch_id, rows))
    assert LedgerEntry.from_metadata(entry.to_metadata()) == entry


def test_an_entry_is_far_below_what_brokers_take() -> None:
    entry = LedgerEntry("0" * 36, 2**63 - 1, "f" * 64, 2**63 - 1, WriterEpoch(2**63 - 1, 2**15 - 1))
    assert len(entry.to_metadata()) < 400
    for number in range(2 * MOST_BEGUN):
        batch = Planned(f"{number:036}", 2**63 - 1, "f" * 64, 0)
        entry = LedgerEntry.begun(batch, WriterEpoch(2**63 - 1, 2**15 - 1), entry)
    assert len(begun_entries(entry)) == MOST_BEGUN, "the oldest are left out"
    assert last_batch(entry) is not None
    assert len(entry.to_metadata()) < 2500


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "{}",
        "query 7, batch 1",
        LedgerEntry(MINE, 1, "d", 1, WRITER).to_metadata().replace('"format":1', '"format":2'),
        LedgerEntry(MINE, 1, "d", 1, WRITER).to_metadata().replace('"batch":1', '"batch":"1"'),
        LedgerEntry(MINE, 1, "d", 1, WRITER).to_metadata().replace("[7000,3]", "[7000]"),
        LedgerEntry(MINE, 1, "d", 1, WRITER).to_metadata().replace("[7000,3]", '[7000,"3"]'),
    ],
)
def test_what_is_no_entry(text: str) -> None:
    with pytest.raises(LedgerMalformed, match="ledger holds"):
        LedgerEntry.from_metadata(text)


# --- the offset log -----------------------------------------------------------------------------

OURS = '{"from":{"in":{"0":1}},"to":{"in":{"0":5,"1":7}}}'
SPARKS = '{"in":{"1":9,"0":4}}'
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000}'


def log(*lines: str, version: str = "v1") -> str:
    return "\n".join((version, METADATA, *lines))


def test_offsets_of_topics_are_understood_and_others_are_left_alone() -> None:
    logged = read_offset_log(log(OURS, "-", SPARKS, "17", '{"logOffset":3}'))
    assert logged.planned_ms == 1_700_000_000_000
    assert logged.topic_offsets().keys() == {"0", "2"}
    assert logged.topic_offsets()["0"].start == {TopicPartition("in", 0): 1}
    # Two sources read partition 0: only what both have read is done.
    assert logged.ends() == {TopicPartition("in", 0): 4, TopicPartition("in", 1): 7}


def test_the_digest_is_of_the_offsets_and_not_of_their_text() -> None:
    digest = read_offset_log(log(SPARKS)).digest
    assert read_offset_log(log('{"in": {"0": 4, "1": 9}}')).digest == digest
    assert read_offset_log(log('{"in":{"1":9,"0":5}}')).digest != digest
    assert read_offset_log(log(SPARKS, "-")).digest != digest
    assert read_offset_log(log("-", SPARKS)).digest != digest
    moved = log(SPARKS).replace("1700000000000", "1800000000000")
    assert read_offset_log(moved).digest == digest


def test_sources_by_name() -> None:
    one = read_offset_log(log(f"b:{SPARKS}", "a:-", version="v2"))
    other = read_offset_log(log("a:-", f"b:{SPARKS}", version="v2"))
    assert one.digest == other.digest
    assert one.ends() == other.ends() == read_offset_log(log(SPARKS)).ends()


def test_another_form_of_the_log() -> None:
    with pytest.raises(OffsetLogUnreadable, match="v3"):
        read_offset_log(log(SPARKS, version="v3"))
    assert read_offset_log("v1\n\n17").planned_ms == 0


# --- identity -----------------------------------------------------------------------------------


class Memory:
    """The files of a checkpoint."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def read(self, name: str) -> str | None:
        return self.files.get(name)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.files if name.startswith(prefix)]

    def create(self, name: str, text: str) -> None:
        if name in self.files:
            raise SinkError(f"{name} is there already")
        self.files[name] = text

    def delete(self, name: str) -> None:
        self.files.pop(name, None)


def test_an_identity_is_kept_and_its_change_refused() -> None:
    files = Memory()
    kept = SinkIdentity.of_query("totals", None, "ledger")
    keep_identity(files, kept)
    keep_identity(files, kept)
    assert SinkIdentity.from_json(files.files[FILE]) == kept
    for name, group, ledger, changed in (
        ("other", "totals", "ledger", "transactional_id was 'totals' and is 'other'"),
        ("totals", "mine", "ledger", "group was 'totals' and is 'mine'"),
        ("totals", None, "another", "ledger_topic was 'ledger' and is 'another'"),
    ):
        with pytest.raises(IdentityChanged, match=changed):
            keep_identity(files, SinkIdentity.of_query(name, group, ledger))


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"kind": "onceflow sink"})])
def test_a_damaged_identity(text: str) -> None:
    files = Memory()
    files.create(FILE, text)
    with pytest.raises(IdentityChanged, match="cannot be read"):
        keep_identity(files, SinkIdentity.of_query("totals", None, "ledger"))


def test_two_drivers_write_one_identity() -> None:
    mine, files = SinkIdentity.of_query("totals", None, "ledger"), Memory()

    class Slow(Memory):
        """Another driver is faster."""

        def create(self, name: str, text: str) -> None:
            self.files |= files.files
            super().create(name, text)

    keep_identity(files, mine)
    slow = Slow()
    keep_identity(slow, mine)
    assert check_identity(slow, mine)
    files.files[FILE] = SinkIdentity.of_query("other", None, "ledger").to_json()
    with pytest.raises(IdentityChanged, match="belongs to 'other'"):
        keep_identity(Slow(), mine)


# --- how a ledger begins ------------------------------------------------------------------------

COMMITTED = LedgerEntry(MINE, 4, "d4", 1, WRITER)
BEGUN = LedgerEntry.begun(planned(), WRITER, None)
PLANNED_MS = 1000


@pytest.mark.parametrize(
    ("state", "since", "step"),
    [
        (LedgerState.EMPTY, None, LedgerStep.BEGIN),
        (LedgerState.EMPTY, LedgerSince(0, 1), LedgerStep.BEGIN),
        (LedgerState.EMPTY, LedgerSince(5, 1), LedgerStep.BEGIN),
        (LedgerState.BEGUN, None, LedgerStep.NOTE),
        (LedgerState.BEGUN, LedgerSince(0, 1), LedgerStep.NOTE),
        (LedgerState.BEGUN, LedgerSince(5, PLANNED_MS), LedgerStep.WRITE),
        (
            LedgerState.BEGUN,
            LedgerSince(5, PLANNED_MS - 1),
            LedgerStep.NOTE,
        ),  # of an entry that is gone
        (LedgerState.COMMITTED, None, LedgerStep.NOTE),
        (LedgerState.COMMITTED, LedgerSince(0, 1), LedgerStep.WRITE),
        (LedgerState.COMMITTED, LedgerSince(5, 1), LedgerStep.WRITE),
        (LedgerState.COMMITTED, LedgerSince(6, 1), LedgerStep.NOTE),
        (LedgerState.AGED, None, LedgerStep.BEGIN),
        (LedgerState.AGED, LedgerSince(0, 1), LedgerStep.BEGIN),
        (LedgerState.AGED, LedgerSince(5, 1), LedgerStep.BEGIN),
    ],
)
def test_what_comes_before_a_batch(
    state: LedgerState, since: LedgerSince | None, step: LedgerStep
) -> None:
    assert next_step(state, since, 5, PLANNED_MS) is step
    assert len(STEPS) == len(LedgerState) * len(LedgerNote), "every row is there"


def test_a_query_that_has_only_begun_means_nothing_to_others() -> None:
    """Neither over an empty ledger, nor over a batch that was committed."""
    assert LedgerEntry(MINE, 4, "", 0, WRITER, True, None) == BEGUN
    assert seen_by(MINE, BEGUN) == BEGUN
    assert seen_by(OTHER, BEGUN) is last_batch(BEGUN) is None
    over = LedgerEntry.begun(planned()._replace(query_id=OTHER), WRITER, COMMITTED)
    assert seen_by(OTHER, over) == over
    assert seen_by(MINE, over) == seen_by("a third", over) == last_batch(over) == COMMITTED
    again = LedgerEntry.begun(planned(), WRITER, over)
    assert seen_by(OTHER, again) == over, "it still counts for whoever has begun it"
    assert seen_by("a third", again) == last_batch(again) == COMMITTED
    anew = LedgerEntry.begun(planned()._replace(query_id=OTHER), WRITER, again)
    assert begun_entries(anew) == [anew, anew.over], "each query has one"
    for entry in (BEGUN, over, again, anew):
        assert LedgerEntry.from_metadata(entry.to_metadata()) == entry
    assert find(BEGUN, planned(), NOW_MS, WEEK_MS) is Finding.THE_ONE_BEFORE
    assert find(seen_by(OTHER, over), planned(), NOW_MS, WEEK_MS) is Finding.OF_ANOTHER_QUERY


def test_a_checkpoint_knows_from_when_on_it_has_a_ledger() -> None:
    files = Memory()
    assert read_since(files, 9) is None
    for since in (LedgerSince(7, 1000), LedgerSince(10, 90), LedgerSince(7, 999)):
        keep_since(files, since)
        keep_since(files, since)  # another driver was faster
    assert [read_since(files, number) for number in (6, 7, 9)] == [
        None,
        *[LedgerSince(7, 1000)] * 2,
    ]
    assert read_since(files, 10) == LedgerSince(10, 90)
    files.files["onceflow-ledger-11-95.json.old"] = "somebody has put it aside"
    assert read_since(files, 11) == LedgerSince(10, 90)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind":"onceflow sink\'s ledger","format":1}'])
def test_a_damaged_note(text: str) -> None:
    files = Memory()
    files.create(LedgerSince(7, 1000).file, text)
    with pytest.raises(IdentityChanged, match=r"7-1000\.json cannot be read .* delete it"):
        read_since(files, 7)


def test_a_note_that_another_driver_has_just_replaced() -> None:
    class Busy(Memory):
        def names(self, prefix: str) -> list[str]:
            return [*super().names(prefix), LedgerSince(3, 1).file]

    files = Busy()
    keep_since(files, LedgerSince(2, 1))
    assert read_since(files, 7) == LedgerSince(2, 1)


def test_a_note_that_cannot_be_written_is_an_error() -> None:
    class Full(Memory):
        def create(self, name: str, text: str) -> None:
            raise SinkError("no space")

    with pytest.raises(SinkError, match="no space"):
        keep_since(Full(), LedgerSince(0, 0))


def test_since_when_an_entry_is_known() -> None:
    files, plans = Memory(), {number: 1000 + number for number in range(9)}
    start = LedgerStart(files, plans.__getitem__)
    assert start.known_ms(5) is None
    start.write_note(BEGUN, 5)
    assert read_since(files, 5) == LedgerSince(5, 1005), "it is younger than the plan of its batch"
    assert [start.known_ms(number) for number in (4, 5, 6, 8)] == [None, 1005, 1005, 1007]
    start.write_note(BEGUN, 7)
    assert [*files.files] == [LedgerSince(7, 1007).file], "brokers had forgotten it"
    start.write_note(BEGUN, 6)
    assert read_since(files, 7) == LedgerSince(7, 1007), "a driver that slept says nothing newer"
    files.files.clear()
    LedgerStart(files, plans.__getitem__).write_note(COMMITTED, 5)
    assert read_since(files, 5) == LedgerSince(5, 1004), "an earlier release wrote the batch before"
    LedgerStart(files, plans.__getitem__).write_note(BEGUN, 5)
    assert [*files.files] == [LedgerSince(5, 1005).file], "and was forgotten, then begun anew"


@pytest.mark.parametrize(
    ("rest_ms", "step"),
    [(SURELY_KEPT_MS - 1, LedgerStep.WRITE), (SURELY_KEPT_MS, LedgerStep.BEGIN)],
)
def test_an_old_entry_is_begun_anew_where_its_age_is_not_told(
    rest_ms: int, step: LedgerStep
) -> None:
    plans = {4: PLANNED_MS, 5: PLANNED_MS + rest_ms}
    start = LedgerStart(Memory(), plans.__getitem__)
    start.write_note(LedgerEntry.begun(planned(4), WRITER, None), 4)
    assert start.next_step(COMMITTED, 5, is_retention_known=False) is step
    assert start.next_step(COMMITTED, 5, is_retention_known=True) is LedgerStep.WRITE
    start.write_note(BEGUN, 5)
    assert start.next_step(BEGUN, 5, is_retention_known=False) is LedgerStep.WRITE


def test_a_plan_is_looked_up_once() -> None:
    looked_up: list[int] = []

    def look_up(batch_id: int) -> int:
        looked_up.append(batch_id)
        return 1000 + batch_id

    files = Memory()
    keep_since(files, LedgerSince(0, 1000))
    start = LedgerStart(files, look_up)
    for batch_id in range(3, 20):
        start.take_up(batch_id, 1000 + batch_id)
        assert start.known_ms(batch_id) == 999 + batch_id
    assert looked_up == [2]


@pytest.mark.parametrize("name", ["a", "a.write", "a.ledger", "a-write"])
def test_a_write_never_has_the_names_of_a_query(name: str) -> None:
    query, once = SinkIdentity.of_query(name, None, "l"), SinkIdentity.of_write("a", "l")
    names = {once.transactional_id, once.group, once.ledger_group}
    assert not names & {query.transactional_id, query.group, query.ledger_group}
