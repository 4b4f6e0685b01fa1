"""A broker's answers by list, for tests of a transactional producer without any network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from onceflow.client.codec.transactions import (
    EndTxn,
    GroupMember,
    InitProducerIdRequest,
    OffsetToCommit,
    TransactionRequest,
    TransactionResponse,
)
from onceflow.client.errors.requests import BrokerUnreachable, ClientError, ConnectionLost
from onceflow.client.net.retry import RetryPolicy
from onceflow.client.transactions.machine import TransactionMachine
from onceflow.client.transactions.retrier import Operation, Reply, RequestAttempt
from onceflow.client.transactions.states import ProducerState
from onceflow.testing.rand import SimRand
from onceflow.types import TopicPartition
from onceflow.wire.error_codes import ErrorCode as E

T = TypeVar("T")

POLICY = RetryPolicy(total_s=10.0, first_pause_s=0.005, longest_pause_s=0.1)
ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 3)
GIVEN = TransactionResponse(producer_id=7, producer_epoch=0)
DONE = TransactionResponse()


class FakeClock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def wall_ns(self) -> int:
        return self.wall_ms() * 1_000_000


class Bench:
    """A machine, its clock, and what it has asked."""

    def __init__(self, transaction_version: int = 2) -> None:
        self.clock = FakeClock()
        self.machine = TransactionMachine(
            "payments", timeout_ms=60_000, clock=self.clock, rand=SimRand(1), policy=POLICY
        )
        self.version = transaction_version
        self.asked: list[RequestAttempt] = []

    def run(self, operation: Operation[T], *replies: Reply) -> T:
        """Drives an operation to its end; the replies must be just enough. A reply takes 1 ms."""
        left = list(replies)
        try:
            step = next(operation)
            while True:
                self.asked.append(step)
                assert left, f"nothing is left to answer {step}"
                self.clock.now += step.pause_s + 0.001
                step = operation.send(left.pop(0))
        except StopIteration as done:
            assert not left, f"never asked for: {left}"
            result: T = done.value
            return result

    def run_out(self, operation: Operation[T], reply: Reply) -> T:
        """Answers the same until the machine gives up."""
        try:
            step = next(operation)
            while True:
                self.asked.append(step)
                self.clock.now += step.pause_s + 0.001
                step = operation.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    def ready(self) -> TransactionMachine:
        self.run(self.machine.init(self.version), GIVEN)
        self.asked.clear()
        return self.machine

    def in_transaction(
        self, partitions: Sequence[TopicPartition] = (ORDERS,)
    ) -> TransactionMachine:
        """One in which something was sent."""
        machine = self.ready()
        machine.begin()
        if self.version >= 2:
            self.run(machine.join(partitions))
        else:
            self.run(machine.join(partitions), each(partitions, 0))
        assert all(map(machine.may_send, partitions))
        self.asked.clear()
        return machine

    def is_in(self, state: ProducerState) -> bool:
        return self.machine.state is state

    @property
    def requests(self) -> list[TransactionRequest]:
        return [ask.request for ask in self.asked]

    def kinds(self) -> list[str]:
        return [type(request).__name__ for request in self.requests]


def each(partitions: Iterable[TopicPartition], code: int) -> TransactionResponse:
    return TransactionResponse(partitions=tuple((partition, code) for partition in partitions))


def code(number: int) -> TransactionResponse:
    return TransactionResponse(number)


def bumped(epoch: int, producer_id: int = 7) -> TransactionResponse:
    return TransactionResponse(0, producer_id, epoch)


def described(
    epoch: int, state: str = "CompleteCommit", producer_id: int = 7
) -> TransactionResponse:
    """What a coordinator says of a transactional id."""
    return TransactionResponse(0, producer_id, epoch, transaction_state=state)


def ends_in(requests: Iterable[TransactionRequest]) -> list[EndTxn]:
    return [request for request in requests if isinstance(request, EndTxn)]


def inits_in(requests: Iterable[TransactionRequest]) -> list[InitProducerIdRequest]:
    return [request for request in requests if isinstance(request, InitProducerIdRequest)]


def unreachable() -> ClientError:
    return BrokerUnreachable("nothing listens there")


def lost() -> ClientError:
    return ConnectionLost("the connection was lost")


GROUP = GroupMember("readers", 3, "member", None)
OFFSETS = {ORDERS: OffsetToCommit(41, "note")}
WAITS: list[Reply] = [code(E.CONCURRENT_TRANSACTIONS), code(E.COORDINATOR_LOAD_IN_PROGRESS)]
MOVED: list[Reply] = [
    code(E.COORDINATOR_NOT_AVAILABLE),
    code(E.NOT_COORDINATOR),
    lost(),
    unreachable(),
]
