"""The producer: records in, promises of where they are out; exactly once if asked for.

`send` returns as soon as the record is gathered, and waits only while `buffer.memory` is full. With
a transactional id, records are sent inside transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceflow.client.batches import ProducerIdAndEpoch
from onceflow.client.errors import TransactionAborted
from onceflow.client.model import TopicPartition
from onceflow.client.prepared import PreparedTransaction
from onceflow.client.receipts import all_settled
from onceflow.client.record_producer import RecordProducer
from onceflow.client.transaction import Transaction
from onceflow.client.transfer import Claim, OpenTransaction
from onceflow.client.txn_events import told
from onceflow.client.txn_machine import TransactionMachine
from onceflow.client.txn_requests import GroupMember, OffsetToCommit
from onceflow.client.txn_states import Event, State, WrongState


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
        await self._driver.run(machine.init(version, keep_prepared=keep_prepared))
        told(Event.IDENTIFIED, machine.identity)
        self._adopt(machine)

    async def begin_transaction(self) -> None:
        """What is sent from now on is seen whole or not at all."""
        self._running()
        self._transactional().begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetToCommit], group: str | GroupMember
    ) -> None:
        """Offsets of a group that hold if the transaction is committed."""
        machine = self._transactional()
        member = GroupMember(group) if isinstance(group, str) else group
        rows = {
            place: OffsetToCommit(each) if isinstance(each, int) else each
            for place, each in offsets.items()
        }
        await self._driver.run(machine.commit_offsets(member, rows))

    async def commit_transaction(self) -> None:
        """Returns when everything of the transaction is visible. Raises `AbortableError` when it
        has to be aborted; after `UnknownOutcome` it must not be."""
        machine = self._transactional()
        began = self._clock.monotonic()
        if machine.state is State.UNCLEAR_COMMIT:
            await self._end(machine.resolve())
        else:
            await self.flush()
            await self._end(machine.commit())
        self.measured.committed(self._clock.monotonic() - began)

    async def prepare_transaction(self) -> PreparedTransaction:
        """The first phase: all that was sent is safe, and stays hidden until it is completed,
        however long that takes. Its name is to be stored by whoever decides."""
        machine = self._transactional()
        await self.flush()
        prepared = machine.prepare()
        told(Event.PREPARE, machine.identity)
        return prepared

    async def complete_transaction(self, decided: PreparedTransaction | str) -> None:
        """The second phase: commits what is prepared if it has that name, else aborts it. Does
        nothing when nothing is prepared."""
        name = PreparedTransaction.parse(decided) if isinstance(decided, str) else decided
        machine = self._transactional()
        if machine.state is State.UNCLEAR_COMMIT or (machine.prepared and machine.prepared == name):
            await self.commit_transaction()
        elif machine.prepared:
            await self.abort_transaction()

    @property
    def prepared(self) -> PreparedTransaction:
        """The name of what is prepared; empty, and false, when nothing is."""
        return self._transactional().prepared

    async def abort_transaction(self) -> None:
        """Nothing of the transaction will ever be seen."""
        machine = self._transactional()
        if machine.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            reason = TransactionAborted("the transaction was aborted before this was acknowledged")
            self._running().fail_waiting(reason)
            await all_settled(self._accumulator.incomplete())
        await self._end(machine.abort())
        self.measured.aborted()

    async def _end(self, operation: Any) -> None:
        machine = self._transactional()
        began = self._clock.monotonic()
        try:
            await self._driver.run(operation)
        finally:
            self._adopt(machine)
            self._running().transaction_ended(began)

    def _adopt(self, machine: TransactionMachine) -> None:
        """Under a new identity sequences begin at 0."""
        _, producer_id, epoch = machine.identity
        pair = ProducerIdAndEpoch(producer_id, epoch)
        if producer_id >= 0 and pair != self._sequences.producer:
            self._sequences.adopt(pair, has_own_epoch=machine.has_own_epochs)

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
        partitions, from their next sequences on. This producer may not write to them any more."""
        machine = self._transactional()
        await self.flush()
        await self._driver.run(machine.join(partitions))
        following = self._sequences.next_sequences()
        claims = (Claim(each, following.get(each, 0)) for each in partitions)
        return OpenTransaction.of(machine, self.settings.bootstrap_servers, claims)
