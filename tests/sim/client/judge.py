"""The judge of clients: what programs were told, held against what is in the log in the end.

All rules are functions of a history and of what a stranger sees of the broker; each raises
`PromiseBroken`, naming what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.sim.client.history import (
    NEW,
    Attempt,
    Delivery,
    End,
    History,
    Outcome,
    ReadBy,
    Sent,
    Used,
)
from tests.sim.txn.history import NEVER, Place, PromiseBroken
from tests.sim.txn.judge import check_nothing_hangs, check_reads
from tests.sim.txn.observe import COMMITTED, Seen


def judge(history: History, seen: Seen) -> None:
    """All rules."""
    if history.complaints:
        raise PromiseBroken(history.complaints[0])
    check_nothing_hangs(seen)
    check_reads(seen)
    found = where_records_are(seen)
    check_records(history, found)
    check_order(history, found)
    check_transactions(history, seen, found)
    check_offsets(history, seen, found)
    check_fencing(history)
    check_readers(history, seen)
    check_progress(history)


Found = dict[tuple[Place, bytes], list[int]]
"""The offsets of each value in a partition."""


def where_records_are(seen: Seen) -> Found:
    found: Found = {}
    for place, log in seen.logs.items():
        for record in log.records:
            found.setdefault((place, record.value), []).append(record.offset)
    return found


def _name(sent: Sent) -> str:
    return f"{sent.value.decode().rstrip('.')} for {sent.place.topic}-{sent.place.partition}"


def check_records(history: History, found: Found) -> None:
    """Acknowledged: there, once, where it was said. Not applied: not there. Else once at most. And
    nothing is there that nobody sent. Of a record in a transaction "not applied" says that nobody
    who reads what is committed will see it: that is for `check_transactions`."""
    sent_by_anyone = set()
    for used in history.producers:
        for sent in used.records:
            sent_by_anyone.add((sent.place, sent.value))
            offsets = found.get((sent.place, sent.value), [])
            _check_record(sent, offsets)
            is_wrong = sent.outcome is Outcome.NOT_APPLIED and used.transactional_id is None
            if is_wrong and offsets:
                raise PromiseBroken(f"{_name(sent)} was said not to be there and is at {offsets}")
    for place, value in found.keys() - sent_by_anyone:
        raise PromiseBroken(f"{place}: nobody has sent {value[:40]!r}")


def _check_record(sent: Sent, offsets: list[int]) -> None:
    if len(offsets) > 1:
        raise PromiseBroken(f"{_name(sent)} is there {len(offsets)} times: {offsets}")
    if sent.outcome is Outcome.ACKED:
        if not offsets:
            raise PromiseBroken(f"{_name(sent)} was acknowledged and is not there")
        if sent.offset not in (-1, offsets[0]):
            raise PromiseBroken(f"{_name(sent)} is at {offsets[0]}, not at {sent.offset}")


def check_order(history: History, found: Found) -> None:
    """What a producer has sent to a partition is there in the order in which it was sent."""
    for used in history.producers:
        last: dict[Place, int] = {}
        for sent in used.records:
            for offset in found.get((sent.place, sent.value), []):
                if offset < last.get(sent.place, -1):
                    raise PromiseBroken(f"{_name(sent)} is at {offset}, before what was sent first")
                last[sent.place] = offset


# --- transactions -------------------------------------------------------------------------------


def _all(history: History) -> Iterator[tuple[Used, Attempt]]:
    for used in history.producers:
        for attempt in used.attempts:
            yield used, attempt


def _named(used: Used, attempt: Attempt) -> str:
    return f"the transaction of {used.name} that began at {attempt.began_at} ({attempt.end.value})"


def visible(attempt: Attempt, seen: Seen, found: Found) -> list[bool]:
    """For each record whether it is there and committed."""
    return [
        any(
            seen.logs[sent.place].state[offset] == COMMITTED
            for offset in found.get((sent.place, sent.value), [])
        )
        for sent in attempt.records
    ]


def check_transactions(history: History, seen: Seen, found: Found) -> None:
    """Whole or not at all; and as the program was told."""
    for used, attempt in _all(history):
        shown = visible(attempt, seen, found)
        if len(set(shown)) > 1:
            raise PromiseBroken(f"{_named(used, attempt)} is visible in part: {shown}")
        if any(shown) and attempt.end not in (End.COMMITTED, End.UNKNOWN):
            raise PromiseBroken(f"{_named(used, attempt)} is visible; {attempt.errors}")
        if attempt.end is End.COMMITTED and not all(shown):
            raise PromiseBroken(f"{_named(used, attempt)} is not visible")
        if any(shown) and any(sent.outcome is Outcome.NOT_APPLIED for sent in attempt.records):
            raise PromiseBroken(f"{_named(used, attempt)} is visible with what was not applied")


def check_offsets(history: History, seen: Seen, found: Found) -> None:
    """A group's offset is that of its last committed transaction that has one. Those of one
    transactional id follow each other, so the last to be committed is the last to have begun, and
    offsets only grow."""
    groups: dict[str, list[Attempt]] = {}
    for used, attempt in _all(history):
        if attempt.offset is not None:
            groups.setdefault(f"group of {used.transactional_id}", []).append(attempt)
    for group, attempts in groups.items():
        taken = {
            each.offset: each
            for each in attempts
            if each.offset is not None and any(visible(each, seen, found))
        }
        _check_offset(group, seen.offsets[group][1], max(taken, default=-1))
        for look in history.looked:
            if look.group == group:
                told = [at for at, each in taken.items() if each.committed_at < look.asked_at]
                may = [at for at, each in taken.items() if each.commit_asked_at < look.answered_at]
                least = max(told, default=-1)
                _check_offset(group, look.offset, *(each for each in (-1, *may) if each >= least))


def _check_offset(group: str, offset: int, *expected: int) -> None:
    if offset not in expected:
        raise PromiseBroken(f"the {group} is at {offset}, not at {expected}")


# --- fencing ------------------------------------------------------------------------------------


def check_fencing(history: History) -> None:
    """Who was replaced writes nothing more; who was told to be replaced was."""
    for used in history.producers:
        if used.transactional_id is not None and used.initialised_at != NEVER:
            others = [
                each
                for each in history.producers
                if each is not used and each.transactional_id == used.transactional_id
            ]
            _check_replaced(used, others)
            _check_fenced(history, used, others)


def _check_replaced(used: Used, others: list[Used]) -> None:
    replaced_at = min(
        (each.initialised_at for each in others if each.init_asked_at > used.initialised_at),
        default=NEVER,
    )
    for sent in used.records:
        if sent.asked_at > replaced_at and sent.outcome is Outcome.ACKED:
            raise PromiseBroken(f"{_name(sent)} was acknowledged, and its producer was replaced")
    for attempt in used.attempts:
        is_taken = attempt.end is End.COMMITTED and attempt.records
        if is_taken and attempt.commit_asked_at > replaced_at:
            raise PromiseBroken(f"{_named(used, attempt)} went well after it was replaced")


def _check_fenced(history: History, used: Used, others: list[Used]) -> None:
    """The older protocol cannot tell a producer that was replaced from one that was too slow; nor
    can the newer one while it does not know what became of its commit."""
    is_in_doubt = bool(used.attempts) and used.attempts[-1].end is End.UNKNOWN
    if used.fenced_at == NEVER or used.generation != NEW or is_in_doubt:
        return
    by_another = any(
        each.init_asked_at < used.fenced_at and each.initialised_at > used.init_asked_at
        for each in others
    )
    if not by_another and used.transactional_id not in history.repeated_inits:
        errors = used.attempts[-1].errors if used.attempts else []
        raise PromiseBroken(f"{used.name} was fenced, and there was nobody else: {errors}")


# --- readers ------------------------------------------------------------------------------------


def check_readers(history: History, seen: Seen) -> None:
    """Each record that there is for a reader was delivered once and in order, and no other."""
    asked = {
        sent.value: attempt.commit_asked_at
        for _, attempt in _all(history)
        for sent in attempt.records
    }
    for reader in history.readers:
        for place, log in seen.logs.items():
            got = [each for each in reader.deliveries if each.place == place]
            _check_delivered_in_order(reader, got)
            if reader.read_committed:
                expected = log.visible
                for each in got:
                    if each.at < asked.get(each.value, 0):
                        raise PromiseBroken(
                            f"{reader.name} got {each.value[:40]!r} before it was committed"
                        )
            else:
                expected = {record.offset: record.value for record in log.records}
            _check_delivered(reader, got, expected)


def _check_delivered_in_order(reader: ReadBy, got: list[Delivery]) -> None:
    for before, after in pairwise(got):
        if after.offset <= before.offset:
            raise PromiseBroken(
                f"{reader.name}, {after.place}: offset {after.offset} came behind {before.offset}"
            )


def _check_delivered(reader: ReadBy, got: list[Delivery], expected: dict[int, bytes]) -> None:
    delivered = {each.offset: each.value for each in got}
    if delivered != expected:
        odd = sorted(dict(delivered.items() ^ expected.items()))
        offset = odd[0]
        raise PromiseBroken(
            f"{reader.name} got {delivered.get(offset, b'nothing')[:40]!r} at {offset}, and there "
            f"is {expected.get(offset, b'nothing')[:40]!r}"
        )


def check_progress(history: History) -> None:
    """When nothing is in the way, everything works."""
    for sent in history.final:
        if sent.outcome is not Outcome.ACKED:
            raise PromiseBroken(f"{_name(sent)} was not acknowledged: {sent.outcome.value}")
    for used, attempt in _all(history):
        if attempt.must_succeed and attempt.end is not End.COMMITTED:
            raise PromiseBroken(f"{_named(used, attempt)} was not committed: {attempt.errors}")
