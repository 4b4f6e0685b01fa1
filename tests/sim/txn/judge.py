"""The judge of what a broker shows after a power cut, held against what clients were promised.

All rules are functions of what was seen and of the history up to the cut; each raises
`PromiseBroken`, naming what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.sim.txn.history import NEVER, History, PromiseBroken, Sent, Transaction
from tests.sim.txn.observe import ABORTED, COMMITTED, OPEN, Seen

COMPACTED = "b"
Outcomes = dict[int, str]
"""What became of transactions, by their place in the history."""


def check_reads(seen: Seen) -> None:
    """Both kinds of reads, both ways to learn the end of a partition, agree with the markers."""
    for place, log in seen.logs.items():
        if log.listed != (log.high_watermark, log.last_stable_offset):
            raise PromiseBroken(
                f"{place} ends at {log.listed} by ListOffsets, at "
                f"{log.high_watermark, log.last_stable_offset} by Fetch"
            )
        committed = {
            record.offset: record.value
            for record in log.records
            if log.state[record.offset] == COMMITTED and record.offset < log.last_stable_offset
        }
        if log.visible != committed:
            odd = sorted(log.visible.keys() ^ committed.keys())
            raise PromiseBroken(f"{place}: reads of committed records are wrong at {odd}")
        undecided = [offset for offset, state in log.state.items() if state == OPEN]
        if undecided and log.last_stable_offset > min(undecided):
            raise PromiseBroken(f"{place} is stable up to an open transaction and beyond")


def check_ends(seen: Seen, history: History, boundary: int) -> None:
    """No end that a reader was shown is behind what is there now."""
    for shown in history.shown:
        if shown.at <= boundary:
            log = seen.logs[shown.place]
            now = log.high_watermark, log.last_stable_offset
            if now[0] < shown.high_watermark or now[1] < shown.last_stable_offset:
                raise PromiseBroken(f"ends went back from {shown} to {now}")


def check_nothing_hangs(seen: Seen) -> None:
    """After all time is up no transaction is open, anywhere."""
    for place, log in seen.logs.items():
        if log.open or log.last_stable_offset != log.high_watermark:
            raise PromiseBroken(
                f"{place} hangs at {log.last_stable_offset} of {log.high_watermark}, for {log.open}"
            )
        if OPEN in log.state.values():
            raise PromiseBroken(f"{place} has records that nobody will decide about")
    for transactional_id, (state, _) in seen.transactions.items():
        if state not in ("Empty", "CompleteCommit", "CompleteAbort"):
            raise PromiseBroken(f"{transactional_id} is still {state}")
    for group, (code, _) in seen.offsets.items():
        if code != "NONE":
            raise PromiseBroken(f"the offsets of {group} are still {code}")


def check_never_back(before: Seen, after: Seen) -> None:
    """Ends only grow, and what was decided stays so."""
    for place, log in before.logs.items():
        later = after.logs[place]
        if (
            later.high_watermark < log.high_watermark
            or later.last_stable_offset < log.last_stable_offset
        ):
            raise PromiseBroken(f"the ends of {place} went back")
        if not log.visible.items() <= later.visible.items():
            raise PromiseBroken(f"{place}: committed records are gone")
        for offset, state in log.state.items():
            if state == ABORTED and later.state.get(offset, ABORTED) != ABORTED:
                raise PromiseBroken(f"{place}: the record at {offset} was aborted, and is not now")


def is_visible(seen: Seen, sent: Sent) -> bool:
    """Whether all records of a batch are committed, or none. Each can then be read (`check_reads`),
    if need be when other transactions before it have ended."""
    log = seen.logs.get(sent.place)
    committed = (
        {}
        if log is None
        else {r.offset: r.value for r in log.records if log.state[r.offset] == COMMITTED}
    )
    there = [committed.get(sent.offset + at) == value for at, value in enumerate(sent.values)]
    if any(there) != all(there):
        raise PromiseBroken(f"half of the batch at {sent.offset} of {sent.place} is visible")
    return all(there)


def check_atomic(
    seen: Seen, history: History, boundary: int, resumed: Mapping[int, bool]
) -> Outcomes:
    """Transactions are visible whole or not at all, as was acknowledged; what became of each.
    `resumed` are those that were ended after the cut, and whether they were committed."""
    outcomes: Outcomes = {}
    for number, each in enumerate(history.transactions):
        batches = each.acked
        if number in resumed:
            batches = [sent for sent in batches if sent.acked_at <= boundary]
        visible = [is_visible(seen, sent) for sent in batches]
        if len(set(visible)) > 1:
            raise PromiseBroken(f"{_name(each)} is visible in part: {visible}")
        committed = any(visible)
        must = resumed.get(number, each.must_be_visible(boundary))
        may = resumed.get(number, each.may_be_visible(boundary) and not each.is_refused(boundary))
        if committed and not may:
            raise PromiseBroken(f"{_name(each)} is visible, and was never committed")
        if must and batches and not committed:
            raise PromiseBroken(f"{_name(each)} was committed, and is gone")
        _check_kept(seen, each, boundary, committed=committed)
        if committed:
            outcomes[number] = COMMITTED
        elif _is_aborted(seen, each):
            outcomes[number] = ABORTED
    return outcomes


def _name(transaction: Transaction) -> str:
    who = f"transaction {transaction.number} of {transaction.transactional_id}"
    return f"{who}, {transaction.identity}"


def _check_kept(seen: Seen, each: Transaction, boundary: int, *, committed: bool) -> None:
    """Acknowledged batches are in the log at their offsets, unless compaction took aborted ones;
    what was refused is nowhere."""
    for sent in each.batches:
        for at, value in enumerate(sent.values):
            log = seen.logs.get(sent.place)
            found = [] if log is None else [r.offset for r in log.records if r.value == value]
            refused = sent.acked_at == NEVER
            if refused and found and each.end is not None and each.end.answered_at <= boundary:
                raise PromiseBroken(f"{_name(each)}: what was refused is at {found}")
            may_be_gone = sent.place.topic == COMPACTED and not committed
            wanted = [sent.offset + at]
            if sent.acked_at <= boundary and found != wanted and (found or not may_be_gone):
                raise PromiseBroken(
                    f"{_name(each)}: {sent.place} has the record at {found}, not at {wanted}"
                )


def _is_aborted(seen: Seen, each: Transaction) -> bool:
    states = {
        seen.logs[sent.place].state.get(sent.offset)
        for sent in each.acked
        if sent.place in seen.logs and _is_at(seen, sent)
    }
    if ABORTED in states and (OPEN in states or COMMITTED in states):
        raise PromiseBroken(f"{_name(each)} has ended in part")
    return ABORTED in states


def is_open(seen: Seen, sent: Sent) -> bool:
    """Whether a batch is there, and nothing was decided about it."""
    log = seen.logs.get(sent.place)
    return log is not None and log.state.get(sent.offset) == OPEN and _is_at(seen, sent)


def _is_at(seen: Seen, sent: Sent) -> bool:
    records = seen.logs[sent.place].records
    return any(each.offset == sent.offset and each.value == sent.values[0] for each in records)


def check_offsets(
    seen: Seen, history: History, outcomes: Outcomes, known: int, *, pending: bool
) -> None:
    """A group's offset is that of its last committed transaction that has one, among those that
    were acknowledged up to `known`. While something is open (`pending`), it may not be told."""
    expected: dict[str, int] = dict.fromkeys(seen.offsets, -1)
    for number, each in enumerate(history.transactions):
        group = each.transactional_id.replace("transactor", "group")
        if outcomes.get(number) == COMMITTED and each.offset_acked_at <= known:
            expected[group] = each.number
    for group, (code, offset) in seen.offsets.items():
        if code == "UNSTABLE_OFFSET_COMMIT" and pending:
            continue
        if (code, offset) != ("NONE", expected[group]):
            raise PromiseBroken(f"{group} is at {offset} ({code}), not at {expected[group]}")


def check_plain(seen: Seen, history: History, boundary: int, *, repeated: bool) -> None:
    """What the idempotent producer was promised is there, and nothing of it twice. Once it has
    `repeated` what was not answered, that is there too."""
    for sent in history.plain:
        if sent.asked_at > boundary:
            continue
        log = seen.logs.get(sent.place)
        found = [] if log is None else [r.offset for r in log.records if r.value == sent.values[0]]
        is_acked = sent.acked_at <= boundary
        if len(found) > 1:
            raise PromiseBroken(f"{sent.place}: {sent.values[0][:20]!r} is there at {found}")
        if (is_acked and found != [sent.offset]) or (repeated and not found):
            raise PromiseBroken(f"{sent.place}: {sent.values[0][:20]!r} is at {found}")


class Decisions:
    """What was decided for good, as far as the durable part of earlier cuts has shown it."""

    def __init__(self) -> None:
        self._known: Outcomes = {}

    def check(self, outcomes: Outcomes, *, durable: bool) -> None:
        """No later cut shows another outcome; `durable` cuts add to what is known."""
        for number, outcome in self._known.items():
            if outcomes.get(number, ABORTED) != outcome:
                raise PromiseBroken(f"transaction {number} was {outcome}: {outcomes.get(number)}")
        if durable:
            self._known.update(outcomes)
