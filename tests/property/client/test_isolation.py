"""Whatever transactions a log holds and however it is cut into answers: a reader of committed
records gets every record of committed transactions and of no others, each once, in order."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, strategies as st

from onceflow.client.consumer.isolation import PartitionFilter
from onceflow.records.batch import StoredBatch, iter_stored
from onceflow.records.control import marker
from onceflow.records.plain import PlainRecord, read_placed, write_records

PRODUCERS = (7, 8, 9)
WRITE, COMMIT, ABORT, PLAIN, EMPTY = "write", "commit", "abort", "plain", "marker alone"


class Aborted(NamedTuple):
    producer_id: int
    first: int
    last: int


class Log:
    """A partition, and what a plain look at all of it says should be seen."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.owners: list[int | None] = []
        """For each batch the number of its transaction, None outside of any."""
        self.aborted: list[Aborted] = []
        self.open: dict[int, tuple[int, int]] = {}
        """For each producer its open transaction: number and first offset."""
        self.fates: dict[int, bool] = {}

    @property
    def end(self) -> int:
        return self.batches[-1].header.next_offset if self.batches else 0

    @property
    def stable(self) -> int:
        return min((first for _, first in self.open.values()), default=self.end)

    def write(self, producer_id: int, count: int, *, transactional: bool) -> None:
        records = [PlainRecord(None, b"%d" % (self.end + number)) for number in range(count)]
        if transactional:
            number, _ = self.open.setdefault(producer_id, (len(self.owners), self.end))
            self.owners.append(number)
        else:
            self.owners.append(None)
        batch = write_records(
            records,
            0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
        )
        self.batches.append(batch.assign(self.end, 0))

    def finish(self, producer_id: int, *, commit: bool) -> None:
        offset = self.end
        opened = self.open.pop(producer_id, None)
        if opened is not None:
            self.fates[opened[0]] = commit
            if not commit:
                self.aborted.append(Aborted(producer_id, opened[1], offset))
        end = marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp_ms=0)
        self.batches.append(end.assign(offset, 0))
        self.owners.append(None)

    def seen(self, start: int, end: int, *, read_committed: bool) -> list[int]:
        found: list[int] = []
        for batch, owner in zip(self.batches, self.owners, strict=True):
            hidden = read_committed and owner is not None and not self.fates.get(owner, False)
            if not batch.header.is_control and not hidden:
                found += range(batch.header.base_offset, batch.header.next_offset)
        return [offset for offset in found if start <= offset < end]


events = st.tuples(
    st.sampled_from([WRITE, WRITE, WRITE, COMMIT, ABORT, PLAIN, EMPTY]),
    st.sampled_from(PRODUCERS),
    st.integers(1, 3),
)


def grown(script: list[tuple[str, int, int]]) -> Log:
    log = Log()
    for what, producer_id, count in script:
        if what == WRITE:
            log.write(producer_id, count, transactional=True)
        elif what == PLAIN and producer_id not in log.open:
            log.write(producer_id, count, transactional=False)
        elif what == EMPTY or producer_id in log.open:
            log.finish(producer_id, commit=what == COMMIT)
    return log


class Answers:
    """Serves a log as a broker does: whole batches from the one with the offset on, up to a bound,
    cut off anywhere, with the aborted transactions that reach in (and, as brokers may, more)."""

    def __init__(self, log: Log, bound: int, *, names_all: bool) -> None:
        self.log = log
        self.bound = bound
        self.names_all = names_all

    def fetch(self, offset: int, size: int, cut: int) -> tuple[list[tuple[int, int]], bytes]:
        found = [
            batch
            for batch in self.log.batches
            if batch.header.next_offset > offset and batch.header.base_offset < self.bound
        ]
        taken = found[:size]
        end = taken[-1].header.next_offset if taken else offset
        aborted = [
            (each.producer_id, each.first)
            for each in self.log.aborted
            if each.last >= offset and (self.names_all or each.first < end)
        ]
        data = b"".join(bytes(batch.buffer) for batch in taken)
        more = bytes(found[size].buffer)[:cut] if len(found) > size else b""
        return aborted[::-1], data + more


@given(
    st.lists(events, max_size=40),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 70)), min_size=1, max_size=30),
    st.integers(0, 30),
    st.booleans(),
    st.booleans(),
)
def test_what_is_seen_does_not_depend_on_how_it_is_fetched(
    script: list[tuple[str, int, int]],
    sizes: list[tuple[int, int]],
    start: int,
    read_committed: bool,
    names_all: bool,
) -> None:
    log = grown(script)
    start = min(start, log.end)
    bound = log.stable if read_committed else log.end
    answers = Answers(log, bound, names_all=names_all)
    reader = PartitionFilter(start, read_committed=read_committed)
    offsets: list[int] = []
    while reader.position < bound:
        size, cut = sizes[len(offsets) % len(sizes)]
        asked = reader.position
        aborted, data = answers.fetch(asked, size, cut)
        reader.begin(aborted if read_committed else ())
        for batch in reader.visible(iter_stored(data)):
            assert reader.position == batch.header.next_offset
            offsets += [offset for offset, _ in read_placed(batch) if offset >= asked]
        assert reader.position > asked
    assert offsets == log.seen(start, bound, read_committed=read_committed)
    assert reader.position == max(start, bound)


@given(st.lists(events, max_size=40), st.lists(st.integers(1, 4), min_size=1, max_size=10))
def test_a_range_may_be_given_in_pieces(
    script: list[tuple[str, int, int]], cuts: list[int]
) -> None:
    log = grown(script)
    aborted, data = Answers(log, log.stable, names_all=True).fetch(0, len(log.batches), 0)
    whole = PartitionFilter(0, read_committed=True)
    whole.begin(aborted)
    pieces = PartitionFilter(0, read_committed=True)
    pieces.begin(aborted)
    batches = list(iter_stored(data))
    given_out: list[StoredBatch] = []
    while batches:
        size = cuts[len(batches) % len(cuts)]
        given_out += pieces.visible(batches[:size])
        batches = batches[size:]
    assert given_out == list(whole.visible(iter_stored(data)))
    assert pieces.position == whole.position
