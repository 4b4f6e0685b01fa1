"""A transactional producer against a coordinator of a few lines, over a network that loses requests
and answers: whatever is lost, both agree on what was committed, and doubt is never guessed away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, strategies as st

from onceflow.client.codec.transactions import (
    AddPartitions,
    DescribeTransaction,
    EndTxn,
    InitProducerIdRequest,
    TransactionRequest,
    TransactionResponse,
)
from onceflow.client.errors.requests import ConnectionLost, UnknownOutcome
from onceflow.client.transactions.retrier import Operation, Reply, RequestAttempt
from onceflow.client.transactions.states import ProducerState
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode as E
from tests.unit.client.transactions.scripted_coordinator import Bench

PLACE = TopicPartition("orders", 0)
FATES = st.sampled_from(["arrives"] * 6 + ["request lost", "answer lost", "busy", "moved"])
CALLS = st.sampled_from(["commit"] * 4 + ["abort"] * 2 + ["empty", "cut short", "time out"])


@dataclass
class Coordinator:
    """One transactional id: its epoch, whether a transaction is open, how the last one ended."""

    own_epochs: bool
    epoch: int = -1
    is_open: bool = False
    last: tuple[int, bool] | None = None
    """The epoch and the result of the transaction that ended last."""
    renewed: int = -1
    """The epoch for which the newest one was given: asked for again, it is given again."""
    committed: list[int] = field(default_factory=list)
    number: int = 0
    """Of the transaction that writes."""

    @property
    def state(self) -> str:
        return "Ongoing" if self.is_open else "Empty"

    def write(self, epoch: int, number: int) -> None:
        """A batch arrives; in the newer protocol that opens the transaction."""
        if epoch == self.epoch and (self.is_open or self.own_epochs):
            self.is_open, self.number = True, number

    def answer(self, request: TransactionRequest) -> TransactionResponse:
        if isinstance(request, DescribeTransaction):
            return TransactionResponse(0, 7, self.epoch, transaction_state=self.state)
        if isinstance(request, InitProducerIdRequest):
            known = request.identity.producer_epoch
            if known >= 0 and known == self.renewed:
                return TransactionResponse(0, 7, self.epoch)
            if known not in (-1, self.epoch):
                return TransactionResponse(E.PRODUCER_FENCED)
            self.is_open, self.last, self.renewed = False, None, known
            self.epoch += 1
            return TransactionResponse(0, 7, self.epoch)
        if isinstance(request, AddPartitions):
            self.is_open = True
            return TransactionResponse(partitions=tuple((each, 0) for each in request.partitions))
        assert isinstance(request, EndTxn)
        return self.end(request.identity.producer_epoch, request.committed)

    def end(self, epoch: int, commit: bool) -> TransactionResponse:
        if self.last == (epoch, commit) and not self.is_open:
            return (
                TransactionResponse(0, 7, self.epoch) if self.own_epochs else TransactionResponse()
            )
        if epoch != self.epoch:
            return TransactionResponse(E.PRODUCER_FENCED)
        if not self.is_open and (commit or not self.own_epochs):
            return TransactionResponse(E.INVALID_TXN_STATE)
        if self.is_open and commit:
            self.committed.append(self.number)
        self.is_open, self.last = False, (epoch, commit)
        if not self.own_epochs:
            return TransactionResponse()
        self.epoch += 1
        return TransactionResponse(0, 7, self.epoch)


@dataclass
class World:
    """A producer, its coordinator, and what the network does to each request."""

    bench: Bench
    coordinator: Coordinator
    data: Any
    ends: list[EndTxn] = field(default_factory=list)

    def reply(self, step: RequestAttempt) -> Reply:
        if isinstance(step.request, EndTxn):
            self.ends.append(step.request)
        fate = self.data.draw(FATES)
        if fate == "request lost":
            return ConnectionLost("lost")
        if fate in ("busy", "moved"):
            code = E.CONCURRENT_TRANSACTIONS if fate == "busy" else E.NOT_COORDINATOR
            if isinstance(step.request, AddPartitions):
                return TransactionResponse(
                    partitions=tuple((each, code) for each in step.request.partitions)
                )
            return TransactionResponse(code)
        answer = self.coordinator.answer(step.request)
        return ConnectionLost("lost") if fate == "answer lost" else answer

    def drive(self, operation: Operation[None], *, how: str = "") -> None:
        try:
            step = next(operation)
            while True:
                self.bench.clock.now += step.pause_s + 0.001
                answer = self.reply(step)
                if how == "cut short":
                    operation.close()
                    return
                if how == "time out":
                    answer = ConnectionLost("lost")
                step = operation.send(answer)
        except StopIteration:
            return

    def initialized(self) -> None:
        while self.bench.is_in(ProducerState.UNINITIALIZED):
            self.drive(self.bench.machine.init(self.bench.version))
        while self.bench.machine.needs_renewal:
            self.drive(self.bench.machine.renew())


@given(st.data(), st.sampled_from([1, 2]), st.lists(CALLS, min_size=1, max_size=6))
def test_whatever_is_lost_both_sides_agree(data: Any, version: int, calls: list[str]) -> None:
    bench = Bench(version)
    world = World(bench, Coordinator(own_epochs=version == 2), data)
    machine = bench.machine
    believed: list[int] = []
    used_epochs: list[int] = []
    for number, call in enumerate(calls):
        world.initialized()
        machine.begin()
        world.ends.clear()
        if call != "empty":
            world.drive(machine.join([PLACE]))
            assert machine.may_send(PLACE)
            world.coordinator.write(machine.identity.producer_epoch, number)
            used_epochs.append(machine.identity.producer_epoch)
        if call == "abort":
            world.drive(machine.abort())
        else:
            committed = finish(world, call)
            believed += [number] * (committed and call != "empty")
        kinds = {end.committed for end in world.ends}
        assert len(kinds) <= 1, "never both a commit and an abort of one transaction"
        assert len(set(world.ends)) <= 1, "always in the same words"
    assert believed == world.coordinator.committed
    if version == 2:
        assert len(set(used_epochs)) == len(used_epochs), "every transaction has its own epoch"


def finish(world: World, call: str) -> bool:
    """Commits, and resolves what is unclear; whether it was committed."""
    machine = world.bench.machine
    try:
        world.drive(machine.commit(), how=call)
    except UnknownOutcome:
        assert call == "time out"
    while world.bench.is_in(ProducerState.UNCLEAR_COMMIT):
        try:
            world.drive(machine.resolve())
        except UnknownOutcome:
            continue
    return True
