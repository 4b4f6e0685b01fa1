"""Everything that sends, cancelled at each of its waits, struck at each of its requests, used by
several at once; and the proof that this finds what it is for: bugs that are planted are found.

`python -m tests.sim.sweeps.sending` strikes each request with each fate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from onceflow.client.errors.requests import ClientError, TransactionAborted
from onceflow.client.producer.producer import Producer
from onceflow.client.producer.sender import Sender
from onceflow.client.producer.transaction import Transaction
from onceflow.client.session.session_work import SessionWork
from onceflow.client.session.states import SessionStage
from onceflow.client.transactions.ending import TransactionEnd, TransactionEnds
from onceflow.client.transactions.machine import TransactionMachine
from onceflow.client.transactions.states import TransactionEvent
from tests.sim.sweeps.sending import Fate, cut_everywhere, strike_everywhere
from tests.sim.sweeps.sending_programs import PROGRAMS
from tests.sim.sweeps.sending_users import use
from tests.sim.txn.history import PromiseBroken

SEEDS = range(6)
SEEDS_TO_TRY = range(30)

pytestmark = pytest.mark.usefixtures("quiet")


CALLS = {
    "transactions": {"start", "init_transactions", "send", "send_offsets", "commit", "abort"},
    "blocks": {"start", "block"},
    "two phases": {"start", "init_transactions", "open_transaction", "prepare", "complete"},
    "records": {"start", "send", "receipt", "close"},
    "copying": {"start", "next", "send", "close"},
    "sharing": {"start", "next", "send", "close"},
    "letters": {"start", "next", "lag"},
    "administration": {"start", "a call"},
}


LONG = ("copying", "sharing", "letters", "administration")
STEPS = [
    *((name, 3 if name in LONG else 1) for name in PROGRAMS),
    *(pytest.param(name, 1, marks=pytest.mark.long) for name in LONG),
]


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_who_is_cancelled_anywhere_can_go_on(name: str, step: int) -> None:
    cut = cut_everywhere(PROGRAMS[name], step)
    assert set(cut) >= CALLS[name]


FATES = list(zip(PROGRAMS, cycle(Fate), strict=False))


@pytest.mark.parametrize(("name", "fate"), FATES)
def test_each_request_may_meet_its_fate(name: str, fate: Fate) -> None:
    assert strike_everywhere(PROGRAMS[name], fate, step=5)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("fate", Fate)
def test_each_request_may_meet_each_fate(name: str, fate: Fate) -> None:
    assert strike_everywhere(PROGRAMS[name], fate)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_transaction_is_whole_however_many_use_its_producer(seed: int) -> None:
    use(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_500))
def test_the_same_with_many_seeds(seed: int) -> None:
    use(seed)


# --- bugs -----------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def sends_are_not_refused(patch: pytest.MonkeyPatch) -> None:
    """The state changes only when the end is asked for."""

    async def abort(ends: TransactionEnds) -> None:
        await ends._ways.drop(TransactionAborted("aborted"))
        await ends._ways.ask(ends._machine.abort())

    async def commit(ends: TransactionEnds, end: TransactionEnd) -> None:
        await ends._ways.flush()
        await ends._ways.ask(ends._machine.commit())

    patch.setattr(TransactionMachine, "refuse_sends", lambda machine, event: machine._after(event))
    patch.setattr(TransactionEnds, "_abort", abort)
    patch.setattr(TransactionEnds, "_commit", commit)


def sends_that_waited_are_not_asked(patch: pytest.MonkeyPatch) -> None:
    """For which transaction they were."""
    honest = Producer._check_transaction
    patch.setattr(Producer, "_check_transaction", lambda ours, number=None: honest(ours))


def blocks_have_no_number(patch: pytest.MonkeyPatch) -> None:
    """What comes through an old block is taken for the transaction that is open."""

    async def send(block: Transaction, topic: str, value: bytes) -> Any:
        return await block._producer.send(topic, value)

    patch.setattr(Transaction, "send", send)


def late_ends_hit_the_next_transaction(patch: pytest.MonkeyPatch) -> None:
    """A commit that waited for its turn while an abort took its place."""

    async def commit(ends: TransactionEnds, end: TransactionEnd) -> None:
        await ends._ways.flush()
        await ends._ways.ask(ends._machine.commit())

    patch.setattr(TransactionMachine, "_check_number", lambda machine, number: None)
    patch.setattr(TransactionEnds, "_commit", commit)


def a_block_forgets_an_abort(patch: pytest.MonkeyPatch) -> None:
    """One that is cancelled in its last flush."""

    async def commit(block: Transaction) -> None:
        await block._producer.commit_transaction()

    async def run(ends: TransactionEnds, event: TransactionEvent) -> None:
        ends._machine.refuse_sends(event)
        await ends._work(TransactionEnd(event, 0.0))

    patch.setattr(Transaction, "_commit", commit)
    patch.setattr(TransactionEnds, "run", run)


def ends_are_cut_with_their_callers(patch: pytest.MonkeyPatch) -> None:
    """They go on when somebody asks again, and not before."""
    patch.setattr(TransactionEnds, "_go_on", lambda ends, end: ends._finish(end, None))


def renewals_take_records_along(patch: pytest.MonkeyPatch) -> None:
    """Who stops waiting for an epoch has taken the batch for which it was asked."""
    honest = SessionWork._poll

    async def poll(work: SessionWork) -> Any:
        table = await honest(work)
        if table is not None and work.stage is SessionStage.IDLE:
            await work._renew()
        return table

    patch.setattr(SessionWork, "_poll", poll)


def receipts_are_left_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sender, "give_up_all", lambda sender: None)


def tasks_are_left_behind(patch: pytest.MonkeyPatch) -> None:
    """A session that is closed does not end what it has begun to end."""

    async def stop(work: SessionWork) -> None:
        await asyncio.sleep(0)

    def never_ends(ending: object) -> None:
        asyncio.get_running_loop().create_task(asyncio.sleep(1e6))

    patch.setattr(SessionWork, "_stop_ending", stop)
    patch.setattr("onceflow.client.session.session_work._looked_at", never_ends)


BY_USERS = (
    sends_are_not_refused,
    sends_that_waited_are_not_asked,
    blocks_have_no_number,
    late_ends_hit_the_next_transaction,
)
BY_CUTS: dict[Plant, str] = {
    a_block_forgets_an_abort: "blocks",
    ends_are_cut_with_their_callers: "transactions",
    renewals_take_records_along: "copying",
    receipts_are_left_open: "records",
    tasks_are_left_behind: "copying",
}


@pytest.mark.parametrize("plant", BY_USERS)
def test_a_bug_is_found_by_users(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in SEEDS_TO_TRY:
        try:
            use(seed)
        except PromiseBroken:
            return
        except ClientError:  # it does not come to rest, which says nothing of what it kept
            continue
    pytest.fail(f"{plant.__name__}: nobody noticed")


@pytest.mark.parametrize("plant", BY_CUTS)
def test_a_bug_is_found_by_cuts(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((PromiseBroken, ClientError, TimeoutError)):
        cut_everywhere(PROGRAMS[BY_CUTS[plant]])
