"""The producer: records in, promises of where they are out; exactly once if asked for.

`send` returns as soon as the record is gathered, and waits only while `buffer.memory` is full. With
a transactional id, records are sent inside transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceflow.client.codec import GroupMember, OffsetsInvalid, OffsetToCommit, offset_rows
from onceflow.client.prepared import PreparedTransaction
from onceflow.client.producer.record_producer import RecordProducer
from onceflow.client.producer.transaction import Transaction
from onceflow.client.transactions import (
    Claim,
    Event,
    OpenTransaction,
    State,
    TransactionMachine,
    WrongState,
    told,
)
from onceflow.client.types import TopicPartition
from onceflow.errors import InvariantViolated


class Producer(RecordProducer):
    """Settings go by Kafka's names, in a mapping with dots or as keywords with underscores.

    >>> async def main() -> None:
    ...     async with Producer(bootstrap, linger_ms=0) as producer:
    ...         receipt = await producer.send("orders", b"paid", key=b"42")
    ...         print((await receipt).offset)
    ...         print(producer.metrics()["record-send-total"])
    >>> asyncio.run(main())
    0
    1.0
    """

    def _transactional(self) -> TransactionMachine:
        if self._machine is None:
            raise WrongState("the producer has no transactional.id: give it one")
        return self._machine

    async def init_transactions(self, *, keep_prepared: bool = False) -> None:
        """Takes over the transactional id: ends what another producer has left open under it, and
        fences that one. `keep_prepared`: it is not ended but `prepared`, to be completed."""
        machine = self._transactional()
        self._running()
        version = await self._cluster.transaction_version()
        await self._settled()
        self._check_life(machine)
        await self._driver.run(machine.init(version, keep_prepared=keep_prepared))
        told(Event.IDENTIFIED, machine.identity)
        self._adopt(machine)

    async def begin_transaction(self) -> None:
        """What is sent from now on is seen whole or not at all. Waits for the end of the
        transaction before, if somebody has asked for it and did not wait. Takes its next epoch
        first when the last one must not be used again, or when there was no transaction for an
        hour: brokers may have forgotten the id."""
        machine = self._transactional()
        self._running()
        await self._settled()
        self._check_life(machine)
        if machine.needs_renewal:
            await self._renew()
            self._check_life(machine)
        self._begin_at_once()

    def _begin_at_once(self) -> None:
        """When no end is under way, and no renewal is due."""
        machine = self._transactional()
        if machine.state is State.READY and self._accumulator.incomplete():
            raise InvariantViolated("records of the transaction before would be part of this one")
        machine.begin()
        if self._ends is not None:
            self._ends.begun()

    async def _renew(self) -> None:
        """Keeps the transactional id in use; raises `Fenced` when another producer has it."""
        machine = self._transactional()
        await self._driver.run(machine.renew())
        self._adopt(machine)

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetToCommit], group: str | GroupMember
    ) -> None:
        """Offsets of a group that hold if the transaction is committed."""
        machine = self._transactional()
        member = GroupMember(group) if isinstance(group, str) else group
        rows = offset_rows(offsets)
        if not isinstance(member, GroupMember):
            raise OffsetsInvalid(
                f"the group is {group!r}; pass its name, or what consumer.group_metadata() gives"
            )
        await self._driver.run(machine.commit_offsets(member, rows))

    async def commit_transaction(self) -> None:
        """Returns when everything of the transaction is visible. Raises `AbortableError` when it
        has to be aborted; after `UnknownOutcome` it must not be. If the caller is cancelled the
        commit goes on: called again, it says how that ended."""
        await self._end_by(Event.COMMIT)

    async def prepare_transaction(self) -> PreparedTransaction:
        """The first phase: all that was sent is safe, and stays hidden until it is completed,
        however long that takes. Its name is to be stored by whoever decides."""
        machine = self._transactional()
        await self._end_by(Event.PREPARE)
        return machine.prepared

    async def complete_transaction(self, decided: PreparedTransaction | str) -> None:
        """The second phase: commits what is prepared if it has that name, else aborts it; also
        what could not be prepared. Does nothing when there is nothing to complete. Waits for a
        prepare that somebody has asked for and did not wait for."""
        name = PreparedTransaction.parse(decided) if isinstance(decided, str) else decided
        machine = self._transactional()
        self._running()
        await self._settled()
        self._check_life(machine)
        if machine.state is State.UNCLEAR_COMMIT or (machine.prepared and machine.prepared == name):
            await self.commit_transaction()
        elif machine.prepared or machine.state is State.ABORTABLE_ERROR:
            await self.abort_transaction()

    @property
    def prepared(self) -> PreparedTransaction:
        """The name of what is prepared; empty, and false, when nothing is."""
        return self._transactional().prepared

    async def abort_transaction(self) -> None:
        """Nothing of the transaction will ever be seen, nor of what others try to send in it
        meanwhile: they are refused. If the caller is cancelled the abort goes on."""
        await self._end_by(Event.ABORT)

    async def _end_by(self, event: Event) -> None:
        self._transactional()
        self._running()
        if self._ends is not None:
            await self._ends.run(event)

    def transaction(self) -> Transaction:
        """One transaction, for `async with`: committed at its end, aborted when it is left by an
        exception. The first one takes over the transactional id."""
        self._transactional()
        return Transaction(self)

    @property
    def state(self) -> State:
        """Where a transactional producer is."""
        return self._transactional().state

    async def open_transaction(self, partitions: Sequence[TopicPartition]) -> OpenTransaction:
        """The transaction that is open, as a value with which another process can write to these
        partitions, from their next sequences on. This producer may not write to them any more.
        Raises as `send` does when an end of it is asked for meanwhile."""
        machine = self._transactional()
        number = self._check_transaction()
        await self.flush()
        self._check_transaction(number)
        await self._driver.run(machine.join(partitions))
        self._check_transaction(number)  # an end may have been asked for meanwhile
        following = self._sequences.next_sequences()
        claims = (Claim(each, following.get(each, 0)) for each in partitions)
        return OpenTransaction.of(machine, self.settings.bootstrap_servers, claims)
