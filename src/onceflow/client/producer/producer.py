"""The producer: sends records to topics, exactly once by default.

`send` returns as soon as the record is in a batch, and waits only while `buffer.memory` is full. It
returns a receipt, which gives the record's offset once the leader has acknowledged the batch. A
producer with a transactional id sends its records in transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from onceflow.client.codec import GroupMember, OffsetsInvalid, OffsetToCommit, offset_rows
from onceflow.client.errors import BufferFull, ClientError, TransactionAborted
from onceflow.client.net import Cluster, comma_separated
from onceflow.client.prepared import PreparedTransaction
from onceflow.client.producer.accumulator import CODECS, Accumulator, BatchLimits
from onceflow.client.producer.batch import (
    RECORD_OVERHEAD,
    Headers,
    check_topic,
    checked,
    checked_partition,
    checked_timestamp,
)
from onceflow.client.producer.idempotence import Sequences
from onceflow.client.producer.metrics import ProducerMetrics
from onceflow.client.producer.partitioner import PartitionChooser, StickyPartitioner
from onceflow.client.producer.receipts import Receipt, TableReceipt, all_settled
from onceflow.client.producer.sender import Sender
from onceflow.client.producer.transaction import Transaction
from onceflow.client.settings import ProducerSettings
from onceflow.client.transactions import (
    SENDS,
    Claim,
    Meets,
    OpenTransaction,
    Operation,
    ProducerState,
    TransactionDriver,
    TransactionEnds,
    TransactionEvent,
    TransactionMachine,
    Ways,
    WrongState,
    log_transaction,
)
from onceflow.errors import InvariantViolated
from onceflow.runtime import Clock, Net, Rand, RealClock, RealRand
from onceflow.types import TopicPartition
from onceflow.wire import ProducerIdAndEpoch

if TYPE_CHECKING:
    import pyarrow as pa

_REQUEST_BYTES: Final = 256 << 10
"""A Produce request of this size is large enough to send at once."""
_OPEN: Final = (
    ProducerState.IN_TRANSACTION
)  # read for every record, and a lookup in the enum is slow
_made = tuple.__new__  # skips the named tuple's own constructor, which is slow Python


class _AlwaysOpen:
    """Stands in for the transaction machine in a producer without transactions."""

    state: Final = _OPEN


class Producer:
    """Sends records to the leaders of their partitions, in batches.

    Settings have Kafka's names: with dots in a mapping, with underscores as keywords.

    >>> async def main() -> None:
    ...     async with Producer(bootstrap, linger_ms=0) as producer:
    ...         receipt = await producer.send("orders", b"paid", key=b"42")
    ...         print((await receipt).offset)
    ...         print(producer.metrics()["record-send-total"])
    >>> asyncio.run(main())
    0
    1.0
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        net: Net | None = None,
        clock: Clock | None = None,
        rand: Rand | None = None,
        **named: object,
    ) -> None:
        if bootstrap is not None:
            named["bootstrap_servers"] = bootstrap
        self.settings = ProducerSettings.of(settings, **named)
        self._clock = clock or RealClock()
        self._rand = rand or RealRand()
        self._cluster = Cluster(
            self.settings.bootstrap_servers, self.settings.cluster(), net=net, rand=self._rand
        )
        name = self.settings.transactional_id
        self._sequences = Sequences(
            idempotent=self.settings.enable_idempotence,
            transactional=name is not None,
            max_in_flight=self.settings.max_in_flight_requests_per_connection,
        )
        self._accumulator = Accumulator(BatchLimits.of(self.settings), self._sequences)
        sticky = StickyPartitioner(self._rand, self.settings.batch_size)
        self._partition_chooser = PartitionChooser(
            self._cluster,
            sticky,
            max_block_ms=self.settings.max_block_ms,
            may_create=self.settings.allow_auto_create_topics,
        )
        self._sender: Sender | None = None
        self.measured = ProducerMetrics(self._clock.monotonic)
        """The metrics one by one; `metrics` gives them all at once."""
        self._room: asyncio.Event
        """Belongs to the event loop on which the producer was started."""
        # Kept here because `_gather` reads them for every record.
        self._door: TransactionMachine | _AlwaysOpen = _AlwaysOpen()
        self._machine: TransactionMachine | None = None
        self._ends: TransactionEnds | None = None
        self._is_started = False
        """True from the beginning of `start` until it fails, or until `close` has ended."""
        self._is_used = False
        """Whether the producer was closed."""
        self._life = 0
        """How often the producer was started."""
        self._block: object = None
        """The `Transaction` whose `async with` block is running."""
        self._begin_anew()
        self._wall_ns = self._clock.wall_ns
        self._open_batches = self._accumulator.open_batches
        self._room_of_batch = self.settings.batch_size - RECORD_OVERHEAD
        self._full_batches = 0
        self._batches_of_request = _REQUEST_BYTES // self.settings.batch_size + 1

    def _begin_anew(self) -> None:
        """Starts again as a producer that has had no transaction yet."""
        self._driver = TransactionDriver(self._cluster, self._clock)
        settings = self.settings
        if settings.transactional_id is None:
            return
        before = self._machine
        machine = self._door = self._machine = TransactionMachine(
            settings.transactional_id,
            timeout_ms=settings.transaction_timeout_ms,
            clock=self._clock,
            rand=self._rand,
            policy=settings.transactional_retry,
            two_phase=settings.transaction_two_phase_commit_enable,
            number=0 if before is None else before.retire(),
        )
        self._block = None
        ways = Ways(self.flush, self._drop, self._ask_end, self._count_end)
        self._ends = TransactionEnds(machine, self._clock, ways)

    def __repr__(self) -> str:
        settings = self.settings
        name = settings.transactional_id
        what = settings.delivery or f"acks={settings.acks}"
        if name is not None:
            what = f"transactional.id {name!r}"
        if self._sender is None:
            state = "closed" if self._is_used else "not started"
        elif self._machine is None:
            state = "running"
        else:
            state = self._machine.state.name.lower().replace("_", " ")
        return f"<Producer of {comma_separated(settings.bootstrap_servers)}, {what}, {state}>"

    # --- start and end ------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to the cluster; raises `BrokerUnreachable` and the like.

        A producer that was closed starts afresh, as in a new process: nothing that was requested
        before the close is carried out. Raises `WrongState` while another task starts or closes the
        producer; does nothing when it is running."""
        if self._sender is not None and not self._accumulator.closing:
            return
        if self._is_started:
            raise WrongState("start: another task is starting or closing the producer")
        self._is_started = True
        try:
            if self._is_used:
                await self._driver.idle()
            await self._cluster.connect()
            self._cluster.check_open()  # `close` may have run during `connect`
        except BaseException:
            self._is_started = False
            raise
        self._begin_life()

    def _begin_life(self) -> None:
        if self._is_used:
            self._begin_anew()
            self._is_used = False
        self._life += 1
        self._accumulator.closing = False
        self._sender = Sender(
            self.settings,
            self._cluster,
            self._accumulator,
            self._clock,
            self._rand,
            self._machine,
            self._driver,
            self.measured,
        )
        self._room = asyncio.Event()
        self._sender.on_progress = self._room.set

    async def close(self) -> None:
        """Sends all batches, or fails them after `delivery.timeout.ms`; waits for a commit or an
        abort in progress; then closes the connections, and raises as `flush` does.

        An open transaction stays open until it times out: abort it first. Cancelling `close` only
        cuts the waiting short: everything ends at once, and every receipt gets an outcome."""
        sender = self._sender
        if sender is None:
            self._cluster.close()  # a start may be under way
            return
        self._accumulator.closing = True
        try:
            await self._settled()
            if self._machine is None or self._machine.state is ProducerState.IN_TRANSACTION:
                await self.flush()
        finally:
            self._stop(sender)
            await sender.stopped()

    async def _close_at_once(self) -> None:
        """Closes without waiting, as a `close` that is cancelled at once does."""
        sender = self._sender
        if sender is None:
            self._cluster.close()  # `start` may be in progress
            return
        self._accumulator.closing = True
        self._stop(sender)
        await sender.stopped()

    def _stop(self, sender: Sender) -> None:
        """Ends everything that runs for this producer."""
        # No await in here: this has to run to its end when the caller has been cancelled. The
        # receipts come last, when no response can arrive any more and give them another outcome.
        sender.stop()
        if self._sender is not sender:
            return
        self._sender = None
        self._is_started, self._is_used = False, True
        self._driver.close()
        if self._ends is not None:
            self._ends.close()
        self._cluster.close()
        sender.give_up_all()

    async def _settled(self) -> None:
        """Waits until no transaction is being ended."""
        if self._ends is not None and self._ends.is_under_way:
            await self._ends.settled()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except ClientError as problem:
            if error is None:
                raise
            if str(problem) != str(error):
                error.add_note(f"besides, the producer ended with: {problem}")

    # --- sending ------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Receipt:
        """Puts a record into a batch; the receipt gives its offset when the batch is acknowledged.

        Records that one task sends to a partition keep their order. Raises `BufferFull` when
        `buffer.memory` stays full for `max.block.ms`; in a transaction that has failed, raises the
        reason."""
        receipt = self._gather(topic, value, key, partition, timestamp_ms, headers)
        if receipt is not None:
            return receipt
        self._running()
        transaction = self._check_transaction()
        if self._accumulator.is_full:
            await self._wait_for_room()
        if timestamp_ms is None:
            timestamp_ms = self._clock.wall_ms()
        return await self._begin(transaction, topic, value, key, partition, timestamp_ms, headers)

    def _gather(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
    ) -> Receipt | None:
        """The fast path of nearly all records: adds the record to an open batch of its partition.

        Returns None when no open batch has room for this record and one more, or when there is
        something to wait for or to raise: `send` does that."""
        if self._door.state is not _OPEN:
            return None
        try:
            number = self._partition_chooser.likely(topic, key) if partition is None else partition
            batch = self._open_batches[topic][number]
        except (KeyError, TypeError):  # `send` raises a clear error for a wrong type
            return None
        if value.__class__ is bytes and (key is None or key.__class__ is bytes) and not headers:
            section, size = None, RECORD_OVERHEAD + len(value) + (len(key) if key else 0)
        else:
            key, value, section, size = checked(key, value, headers)
        filled = batch.size + size
        if filled > self._room_of_batch:
            return None
        # The same as `Accumulator.append`, inlined because it runs for every record: change both.
        values = batch.values
        index = len(values)
        if timestamp_ms is None:
            if (now := self._wall_ns()) >= batch.last_time_until_ns:
                batch.now_at(now)
        elif (time := checked_timestamp(timestamp_ms)) != batch.last_time:
            batch.last_time, batch.last_time_until_ns = time, 0
            batch.times.append((index, time))
        values.append(value)
        if key is not None:
            batch.keys[index] = key
        if section is not None:
            batch.headers[index] = section
        batch.size = filled
        return _made(Receipt, (batch, index))

    async def _begin(
        self,
        transaction: int,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int,
        headers: Headers,
    ) -> Receipt:
        """Adds a record for which a new batch may be needed; raises if its transaction ends during
        the waits for metadata or for the sender."""
        check_topic(topic)
        partition = checked_partition(partition)
        timestamp_ms = checked_timestamp(timestamp_ms)
        key, value, _, size = checked(key, value, headers)
        size -= RECORD_OVERHEAD
        is_free = key is None and partition is None
        before = self._partition_chooser.sticky.batch_of(topic) if is_free else None
        chosen = await self._partition_chooser.find(topic, key, partition, size)
        accumulator = self._accumulator
        if accumulator.shut(chosen if before is None else before.partition, size):
            await self._give_way()
        # Checked again after the waits, and nothing is awaited from here to `append`: the
        # transaction may have ended, and the next one must not get this record.
        sender = self._running()
        self._check_transaction(transaction)
        now = self._clock.monotonic()
        batch, index = accumulator.append(chosen, key, value, timestamp_ms, headers, now)
        if is_free:
            self._partition_chooser.sticky.landed(topic, batch)
        if index == 0 or batch.size + RECORD_OVERHEAD > self.settings.batch_size:
            sender.wake()
        return Receipt(batch, index)

    async def _give_way(self) -> None:
        """Called when a batch is full: lets the sender run when each partition has a full batch, or
        when there are enough for a request. An application that sends record after record without
        a pause would otherwise keep the event loop to itself: no request would go out and no
        response come in. While commits are paced, the sender holds batches back on purpose."""
        self._full_batches += 1
        enough = min(self._accumulator.partitions_waiting, self._batches_of_request)
        sender, now = self._running(), self._clock.monotonic()
        is_held = sender.commit_pacing.held_until(now) > now
        if self._full_batches >= enough and not is_held:
            self._full_batches = 0
            sender.wake()
            await asyncio.sleep(0)

    async def send_table(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> TableReceipt:
        """Sends the rows of an Arrow table as records, encoded batch by batch in compiled code. Its
        columns are key, value, timestamp, headers and partition; only value is required."""
        from onceflow.client.producer.arrow import encoded_by_partition, highest_partition

        self._running()
        check_topic(topic)
        partition = checked_partition(partition)
        transaction = self._check_transaction()
        if self._accumulator.is_full:
            await self._wait_for_room()
        partitions = await self._partition_chooser.count(topic, highest_partition(table, partition))
        pieces = []
        for piece in encoded_by_partition(
            table,
            partitions,
            partition=partition,
            sticky=self._rand.randrange(partitions),
            max_batch_bytes=self.settings.max_request_size // 2,
            codec=CODECS[self.settings.compression_type],
            now_ms=self._clock.wall_ms(),
        ):
            pieces.append(piece)
            # Lets the sender send earlier batches meanwhile, so that the broker does not idle.
            await asyncio.sleep(0)
        # Added only when every row is encoded: an invalid row raises before any row is sent.
        sender = self._running()
        self._check_transaction(transaction)
        now = self._clock.monotonic()
        batches = [
            batch
            for number, encoded in pieces
            for batch in self._accumulator.add_encoded(TopicPartition(topic, number), encoded, now)
        ]
        sender.wake()
        return TableReceipt(batches)

    async def partitions_for(self, topic: str) -> int:
        """The number of partitions of a topic; like `send`, this may make the broker create the
        topic. Raises `TopicNotFound`."""
        self._running()
        if self._cluster.known_partitions(topic) is None:
            return await self._partition_chooser.count(topic)
        return len((await self._cluster.find_topic(topic)).partitions)

    async def _wait_for_room(self) -> None:
        limit_s = self.settings.max_block_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                while self._accumulator.is_full:
                    self._room.clear()
                    self._running().wake()
                    await self._room.wait()
        except TimeoutError:
            raise BufferFull(
                f"{self._accumulator.used} bytes wait to be sent (buffer.memory is "
                f"{self.settings.buffer_memory}) and none could be sent within max.block.ms, "
                f"{limit_s:g} s"
            ) from None

    async def flush(self) -> None:
        """Returns when every record sent so far is acknowledged or has failed.

        Raises `DeliveryFailed`, once, for failed records whose receipts were not awaited; in a
        transaction the commit does that."""
        sender = self._running()
        self._accumulator.flushing += 1
        try:
            sender.send_now()
            await all_settled(self._accumulator.incomplete())
        finally:
            self._accumulator.flushing -= 1
        if sender.unheard:
            await asyncio.sleep(0)  # tasks that await such a receipt get the error first
            if (problem := sender.unheard.take()) is not None:
                raise problem

    def metrics(self) -> Mapping[str, float]:
        """The metrics so far, under the names that Kafka's producer uses."""
        return self.measured.snapshot()

    # --- transactions ---------------------------------------------------------------------------

    def _transactional(self) -> TransactionMachine:
        if self._machine is None:
            raise WrongState("the producer has no transactional.id: give it one")
        return self._machine

    async def init_transactions(self, *, keep_prepared: bool = False) -> None:
        """Takes over the transactional id: the coordinator aborts the transaction that an earlier
        producer left open, and fences that producer. With `keep_prepared` a prepared transaction
        stays `prepared`, to be completed by this producer."""
        machine = self._transactional()
        self._running()
        version = await self._cluster.transaction_version()
        await self._settled()
        self._check_life(machine)
        await self._driver.run(machine.init(version, keep_prepared=keep_prepared))
        log_transaction(TransactionEvent.IDENTIFIED, machine.identity)
        self._adopt(machine)

    async def begin_transaction(self) -> None:
        """Begins a transaction: consumers see all records sent in it, or none.

        Waits for a commit or abort of the previous transaction that is still in progress. Asks the
        coordinator for the next epoch first when the last one must not be used again, or when there
        was no transaction for an hour: brokers may have expired the transactional id."""
        machine = self._transactional()
        self._running()
        await self._settled()
        self._check_life(machine)
        if machine.needs_renewal:
            await self._renew()
            self._check_life(machine)
        self._begin_at_once()

    def _begin_at_once(self) -> None:
        """Begins a transaction when no end is in progress and no new epoch is needed."""
        machine = self._transactional()
        if machine.state is ProducerState.READY and self._accumulator.incomplete():
            raise InvariantViolated("records of the transaction before would be part of this one")
        machine.begin()
        if self._ends is not None:
            self._ends.begun()

    async def _renew(self) -> None:
        """Asks the coordinator for the next epoch; raises `Fenced` when another producer has taken
        over the transactional id."""
        machine = self._transactional()
        await self._driver.run(machine.renew())
        self._adopt(machine)

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetToCommit], group: str | GroupMember
    ) -> None:
        """Commits a group's offsets as part of the transaction: with its records, or not at all."""
        machine = self._transactional()
        member = GroupMember(group) if isinstance(group, str) else group
        rows = offset_rows(offsets)
        if not isinstance(member, GroupMember):
            raise OffsetsInvalid(
                f"the group is {group!r}; pass its name, or what consumer.group_metadata() gives"
            )
        await self._driver.run(machine.commit_offsets(member, rows))

    async def commit_transaction(self) -> None:
        """Commits the transaction: its records become visible, its offsets become the group's.

        Raises `AbortableError` when the transaction has to be aborted. After `UnknownOutcome` it
        must not be aborted: the coordinator may have committed it; call this again to find out. A
        cancelled caller does not stop the commit: calling this again gives its outcome."""
        await self._end_by(TransactionEvent.COMMIT)

    async def prepare_transaction(self) -> PreparedTransaction:
        """The first phase of a two-phase commit: the records are durable, and stay invisible until
        the transaction is completed, however long that takes. Store the returned name with the
        decision, outside of Kafka."""
        machine = self._transactional()
        await self._end_by(TransactionEvent.PREPARE)
        return machine.prepared

    async def complete_transaction(self, decided: PreparedTransaction | str) -> None:
        """The second phase of a two-phase commit: commits the prepared transaction if it has this
        name, and aborts any other, also one that could not be prepared. Does nothing when there is
        nothing to complete. Waits for a prepare that is still in progress."""
        name = PreparedTransaction.parse(decided) if isinstance(decided, str) else decided
        machine = self._transactional()
        self._running()
        await self._settled()
        self._check_life(machine)
        if machine.state is ProducerState.UNCLEAR_COMMIT or (
            machine.prepared and machine.prepared == name
        ):
            await self.commit_transaction()
        elif machine.prepared or machine.state is ProducerState.ABORTABLE_ERROR:
            await self.abort_transaction()

    @property
    def prepared(self) -> PreparedTransaction:
        """The name of the prepared transaction; empty, and false, when there is none."""
        return self._transactional().prepared

    async def abort_transaction(self) -> None:
        """Aborts the transaction: consumers never see its records. Other tasks that try to send in
        it meanwhile get an error. A cancelled caller does not stop the abort."""
        await self._end_by(TransactionEvent.ABORT)

    async def _end_by(self, event: TransactionEvent) -> None:
        self._transactional()
        self._running()
        if self._ends is not None:
            await self._ends.run(event)

    def transaction(self) -> Transaction:
        """A transaction for `async with`: commits at the end of the block, aborts when an exception
        leaves it. The first one takes over the transactional id."""
        self._transactional()
        return Transaction(self)

    @property
    def state(self) -> ProducerState:
        """The state of a transactional producer."""
        return self._transactional().state

    async def open_transaction(self, partitions: Sequence[TopicPartition]) -> OpenTransaction:
        """The open transaction as a value, with which another process can write to these partitions
        from their next sequence numbers on. This producer must not write to them any more: both
        would use the same sequence numbers. Raises as `send` does when another task ends the
        transaction meanwhile."""
        machine = self._transactional()
        number = self._check_transaction()
        await self.flush()
        self._check_transaction(number)
        await self._driver.run(machine.join(partitions))
        self._check_transaction(number)  # another task may have begun to end it
        following = self._sequences.next_sequences()
        claims = (Claim(each, following.get(each, 0)) for each in partitions)
        return OpenTransaction.of(machine, self.settings.bootstrap_servers, claims)

    # --- checks ---------------------------------------------------------------------------------

    def _running(self) -> Sender:
        if self._sender is None:
            raise WrongState("the producer is not started, or is closed: use it in `async with`")
        if (failure := self._sender.failure) is not None:
            raise copy(failure) from failure.__cause__  # its traceback is of another call
        return self._sender

    def _check_life(self, machine: TransactionMachine) -> None:
        """Raises if the producer was closed, or closed and restarted, while the caller waited."""
        self._running()
        if machine is not self._machine:
            raise WrongState("the producer was closed meanwhile, and started again")

    def _check_transaction(self, number: int | None = None) -> int:
        """The number of the open transaction; raises if `number` is given and is another one.
        Without transactions the producer's lives are counted instead."""
        machine = self._machine
        if machine is None:
            if number is not None and number != self._life:
                raise WrongState("send: the producer was closed meanwhile, and started again")
            return self._life
        if machine.state is not _OPEN:
            raise self._refusal(machine)
        if number is not None and machine.number != number:
            raise WrongState("send: the transaction that this was for is over")
        return machine.number

    def _refusal(self, machine: TransactionMachine) -> ClientError:
        """The reason why no record can be sent in a transaction now."""
        meets = SENDS[machine.state]
        is_ending = self._ends is not None and self._ends.is_under_way
        if meets is Meets.COMMIT and is_ending:
            return WrongState("send: the transaction is being committed; send before that")
        if machine.error is not None:
            return copy(machine.error)  # its traceback is of another call
        if meets is Meets.ABORT:
            return TransactionAborted("send: the transaction is being aborted")
        return WrongState(f"send: the producer {machine.state.value}")

    # --- for the ends of transactions -----------------------------------------------------------

    async def _drop(self, reason: TransactionAborted) -> None:
        self._running().fail_waiting(reason)
        await all_settled(self._accumulator.incomplete())

    async def _ask_end(self, operation: Operation[None]) -> None:
        """Asks the coordinator to end the transaction."""
        machine = self._machine
        began = self._clock.monotonic()
        try:
            await self._driver.run(operation)
        finally:
            if machine is not None:
                self._adopt(machine)  # also when it was cut short: the epoch may be new
            if self._sender is not None:
                self._sender.transaction_ended(began)

    def _adopt(self, machine: TransactionMachine) -> None:
        """Gives the sequence numbers the machine's producer id and epoch; under a new pair they
        start at 0."""
        _, producer_id, epoch = machine.identity
        pair = ProducerIdAndEpoch(producer_id, epoch)
        if producer_id >= 0 and pair != self._sequences.producer:
            self._sequences.adopt(pair, has_own_epoch=machine.has_own_epochs)

    def _count_end(self, event: TransactionEvent, took_s: float) -> None:
        if event is TransactionEvent.COMMIT:
            self.measured.committed(took_s)
        elif event is TransactionEvent.ABORT:
            self.measured.aborted()
