"""Sends the accumulator's batches to the leaders, and handles the responses.

Whenever something has changed, or a batch becomes due, the sender groups the ready batches by
leader and sends them; it handles each response when it arrives. Only waiting for brokers (metadata,
connections, InitProducerId, AddPartitionsToTxn) takes a task. The decisions are made in
`accumulator`, `idempotence` and the transaction machine; this module has the sockets and the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from onceflow.client.codec import (
    NEWEST_WITHOUT_TRANSACTION_V2,
    ProduceAnswer,
    producer_id_request,
    read_produce,
    write_produce,
)
from onceflow.client.errors import (
    Action,
    BrokerError,
    ClientError,
    DeliveryFailed,
    FatalProducerError,
    Outcome,
    TransactionAborted,
    action,
)
from onceflow.client.events import PRODUCING, Recurring
from onceflow.client.net import (
    BrokerConnection,
    Cluster,
    ConnectionLane,
)
from onceflow.client.producer.accumulator import Accumulator
from onceflow.client.producer.batch import ProducerBatch
from onceflow.client.producer.commit_pacing import CommitPacing
from onceflow.client.producer.idempotence import BatchResponse, ProduceVerdict
from onceflow.client.producer.metrics import ProducerMetrics
from onceflow.client.producer.receipts import UnheardFailures, tell
from onceflow.client.settings import ProducerSettings
from onceflow.client.transactions import (
    Operation,
    ProducerState,
    TransactionDriver,
    TransactionMachine,
    WrongState,
)
from onceflow.errors import MessageMalformed
from onceflow.runtime import Clock, Rand
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey, ErrorCode, ProducerIdAndEpoch

if TYPE_CHECKING:
    pass

_FAILED: Final = (ProduceVerdict.REFUSED, ProduceVerdict.ABORTABLE, ProduceVerdict.FATAL)
_DONE: Final = BatchResponse(0)
_OPEN: Final = (ProducerState.IN_TRANSACTION, ProducerState.FLUSHING)
_NOT_SETTLED: Final = ErrorCode.CONCURRENT_TRANSACTIONS


class LeaderConnections:
    """The connections over which a producer sends: one to each leader, or two.

    A broker handles the requests of a connection one after the other, and reads no further than its
    buffer holds. So when a connection is full the sender opens a second one, and every other
    partition moves there. Transactions use one: when two batches add partitions to a transaction at
    the same time, Apache Kafka makes one of them wait.
    """

    __slots__ = ("_connections", "_lanes", "_may_have_two")

    def __init__(self, *, may_have_two: bool) -> None:
        self._may_have_two = may_have_two
        self._connections: dict[tuple[int, ConnectionLane], BrokerConnection] = {}
        self._lanes: dict[TopicPartition, ConnectionLane] = {}

    def opened(self, leader: int, lane: ConnectionLane, connection: BrokerConnection) -> None:
        self._connections[leader, lane] = connection

    def of(
        self, partition: TopicPartition, leader: int, is_under_way: Callable[[TopicPartition], bool]
    ) -> BrokerConnection | None:
        """The one for the next batch of a partition; None when there is none that is open."""
        if not self._may_have_two:
            return self._open(leader, ConnectionLane.SHARED)
        moves = partition.partition % 2 and self._open(leader, ConnectionLane.SECONDARY) is not None
        wanted = ConnectionLane.SECONDARY if moves else ConnectionLane.SHARED
        lane = self._lanes.get(partition, ConnectionLane.SHARED)
        # Order is kept within a connection only: a partition that moved while a batch of it is
        # under way could have its next batch arrive first, and be refused as out of sequence.
        if lane is not wanted and not is_under_way(partition):
            self._lanes[partition] = lane = wanted
        return self._open(leader, lane)

    def lacks_second(self, leader: int) -> bool:
        """Whether there may be one more connection to a leader than there is."""
        return self._may_have_two and self._open(leader, ConnectionLane.SECONDARY) is None

    def _open(self, leader: int, lane: ConnectionLane) -> BrokerConnection | None:
        connection = self._connections.get((leader, lane))
        return connection if connection is not None and connection.is_open else None


class SendErrors:
    """What keeps one producer's records from being sent: logged, and kept for the message of the
    error when time is up."""

    __slots__ = ("_clock", "_last", "_recurring")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: ClientError | None = None
        self._recurring = Recurring()

    def met(self, error: ClientError, records: int = 0) -> None:
        """So many records are sent again, or what they wait for is tried again."""
        self._last = error
        what = "sent again (records: %(records)d)" if records else "tried again before sending"
        self._tell("again", what, error, records, logging.INFO)

    def over(self) -> None:
        """Something was acknowledged."""
        self._last = None

    def gave_up(self, batch: ProducerBatch, error: ClientError) -> None:
        """Its records will not be there, as far as is known."""
        # A caller that aborts a transaction knows that.
        first = logging.DEBUG if isinstance(error, TransactionAborted) else logging.WARNING
        what = "not delivered (records: %(records)d)"
        self._tell("undelivered", what, error, batch.count, first)

    def expired(self, batch: ProducerBatch, delivery_timeout_ms: int) -> DeliveryFailed:
        """The error of a batch whose time is up."""
        last = f"; the last problem was: {self._last}" if self._last else ""
        seconds = delivery_timeout_ms / 1000
        count, place = batch.count, batch.partition
        who = f"1 record for {place} was" if count == 1 else f"{count} records for {place} were"
        message = f"{who} not acknowledged within delivery.timeout.ms, {seconds:g} s{last}"
        return DeliveryFailed(message, outcome=outcome_of(batch))

    def _tell(self, event: str, what: str, error: ClientError, records: int, first: int) -> None:
        kind = getattr(error, "name", type(error).__name__)
        PRODUCING.tell(
            self._recurring.level((event, kind), self._clock.monotonic(), first),
            event,
            f"{what}: %(reason)s",
            records=records,
            reason=str(error),
        )


def outcome_of(batch: ProducerBatch) -> Outcome:
    """Whether it is known that its records are not there."""
    return "unknown" if batch.is_outstanding or batch.in_doubt else "not applied"


class Sender:
    """Belongs to one producer and one event loop; does nothing more after `stop`."""

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        accumulator: Accumulator,
        clock: Clock,
        rand: Rand,
        machine: TransactionMachine | None,
        driver: TransactionDriver,
        metrics: ProducerMetrics,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._cluster = cluster
        self._accumulator = accumulator
        self._clock = clock
        self._rand = rand
        self._machine = machine
        self._driver = driver
        self._policy = settings.retry if machine is None else settings.transactional_retry
        self._loop = asyncio.get_running_loop()
        self._is_stopped = False
        self._will_look = False
        self._alarm: tuple[float, asyncio.Handle] | None = None
        self.commit_pacing: Final = CommitPacing()
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._setbacks: dict[object, int] = {}
        self._connections = LeaderConnections(may_have_two=machine is None)
        self._send_errors = SendErrors(clock)
        self.failure: ClientError | None = None
        """The error for which no batch can be sent any more."""
        self.unheard = UnheardFailures()
        self.on_progress: Callable[[], None] = lambda: None
        """Called when batches have an outcome, and `buffer.memory` may have room again."""

    def wake(self) -> None:
        """Looks for batches to send in the loop's next turn. Call it when something has changed."""
        if not self._will_look and self._accumulator.partitions_waiting:
            self._will_look = True
            self._loop.call_soon(self._look)

    def send_now(self) -> None:
        """Like `wake`, but at once, for a caller that waits for the batches."""
        if self._accumulator.partitions_waiting:
            self._send_by(self._clock.monotonic())

    def _send_by(self, now: float) -> None:
        """Sends the batches that are due, and sets the alarm for the others."""
        # By one reading of the clock: with two, a batch that becomes due in between would be
        # neither sent nor waited for.
        self._send_ready(now)
        self._set_alarm(now)

    def transaction_ended(self, began: float) -> None:
        """A transaction has ended, or failed to; the EndTxn was sent at `began`."""
        self.commit_pacing.ended(began, self._clock.monotonic())
        self.wake()

    def stop(self) -> None:
        """Stops sending, and cancels the tasks that wait for brokers."""
        self._is_stopped = True
        if self._alarm is not None:
            self._alarm[1].cancel()
        for task in self._tasks.values():
            task.cancel()

    async def stopped(self) -> None:
        """Waits until these tasks have ended."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _look(self) -> None:
        self._will_look = False
        if self._is_stopped:
            return
        try:
            now = self._clock.monotonic()
            self._give_up_expired(now)
            self._send_by(now)
        except Exception as problem:
            self._broken(problem)

    def _set_alarm(self, now: float) -> None:
        """Looks again when the next batch becomes due or expires; too early does no harm."""
        until = self._accumulator.next_deadline(now)
        held_until = self.commit_pacing.held_until(now)
        if held_until > now and self._accumulator.partitions_waiting:
            until = held_until
        if until is None:
            return
        when = self._loop.time() + (until - now)
        if self._alarm is not None:
            if self._alarm[0] <= when:
                return
            self._alarm[1].cancel()
        self._alarm = when, self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._look()

    # --- in the background --------------------------------------------------------------------

    def _spawn(self, name: object, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts something unless it is under way; when it has ended, all is looked at again."""
        if name not in self._tasks and not self._is_stopped:
            task = self._loop.create_task(self._trying(name, work))
            self._tasks[name] = task
            task.add_done_callback(partial(self._ended, name))

    async def _trying(self, name: object, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What fails is tried again as long as there is something to send, after pauses that grow
        while it goes on failing."""
        try:
            await work()
        except ClientError as error:
            self._send_errors.met(error)
            self._setbacks[name] = self._setbacks.get(name, 0) + 1
            await asyncio.sleep(self._pause(self._setbacks[name]))
        else:
            self._setbacks.pop(name, None)

    def _ended(self, name: object, task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._broken(problem)
        self.wake()

    def _broken(self, problem: BaseException) -> None:
        """No error of a broker or a connection: a defect, which must not become silence."""
        self.failure = FatalProducerError(f"the producer has failed: {problem!r}")
        self.failure.__cause__ = problem
        PRODUCING.error("broken", "%(reason)s", reason=str(self.failure))
        self.fail_waiting(self.failure)

    def _pause(self, attempts: int) -> float:
        policy, doublings = self._policy, min(attempts - 1, 20)
        longest = min(policy.first_pause_s * 2.0**doublings, policy.longest_pause_s)
        return longest * self._rand.uniform(0.8, 1.2)

    async def _learn(self) -> None:
        partitions = {batch.partition for batch in self._accumulator.incomplete()}
        await self._cluster.metadata({each.topic for each in partitions})
        for each in partitions:
            if self._cluster.known_leader(each) is None:
                # Else it would be asked for again at once, and again, until there is one.
                code = ErrorCode.LEADER_NOT_AVAILABLE
                raise BrokerError(code, ApiKey.METADATA.name, f"partition {each}")

    async def _connect(self, leader: int, lane: ConnectionLane) -> None:
        try:
            self._connections.opened(leader, lane, await self._cluster.broker(leader, lane=lane))
        except ClientError:
            self._spawn("metadata", self._learn)  # it may not be the leader any more
            raise

    async def _identify(self) -> None:
        self._accumulator.sequences.adopt(await new_producer_id(self._cluster))

    async def _join(self, operation: Operation[None]) -> None:
        try:
            await self._driver.run(operation)
        except WrongState:
            pass  # its transaction has ended meanwhile, and all that waited with it
        except ClientError as error:
            self.fail_waiting(error)

    # --- sending ------------------------------------------------------------------------------

    def _send_ready(self, now: float) -> None:
        accumulator = self._accumulator
        if accumulator.sequences.needs_producer_id:
            if self._machine is None and accumulator.incomplete():
                self._spawn("producer id", self._identify)
            return
        if self.commit_pacing.held_until(now) > now:
            return
        by_connection: dict[tuple[int, BrokerConnection], list[TopicPartition]] = {}
        for partition in accumulator.ready(now):
            leader = self._cluster.known_leader(partition)
            if leader is None:
                self._spawn("metadata", self._learn)
            elif (
                connection := self._connections.of(partition, leader, accumulator.is_under_way)
            ) is None:
                self._open(leader, ConnectionLane.SHARED)
            else:
                by_connection.setdefault((leader, connection), []).append(partition)
        for (leader, connection), partitions in by_connection.items():
            is_full = self._send_to(connection, self._joined(partitions))
            if is_full and self._connections.lacks_second(leader):
                self._open(leader, ConnectionLane.SECONDARY)

    def _open(self, leader: int, lane: ConnectionLane) -> None:
        self._spawn(("connection", leader, lane), partial(self._connect, leader, lane))

    def _joined(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The partitions to which a batch may go now; the others are added to the transaction
        first. Older leaders accept a batch of a partition that was never added, and then no
        coordinator ends the transaction there."""
        machine = self._machine
        if machine is None:
            return partitions
        may = [each for each in partitions if machine.may_send(each)]
        if len(may) < len(partitions) and machine.state in _OPEN:
            missing = [each for each in partitions if each not in machine.partitions]
            self._spawn("join", partial(self._join, machine.join(missing)))
        return may

    def _send_to(self, connection: BrokerConnection, partitions: list[TopicPartition]) -> bool:
        """Sends batches until the connection has its limit of requests in flight; whether there
        may be more."""
        settings = self._settings
        while connection.in_flight < settings.max_in_flight_requests_per_connection:
            now = self._clock.monotonic()
            batches = self._accumulator.drain(partitions, settings.max_request_size, now)
            if not batches:
                return False
            try:
                self._send(connection, batches)
            except ClientError as error:  # nothing was sent, so no batch is in doubt
                self._lost(batches, error, in_doubt=False)
                return False
        return True

    def _send(self, connection: BrokerConnection, batches: list[ProducerBatch]) -> None:
        machine, settings = self._machine, self._settings
        is_old = machine is not None and not machine.has_own_epochs
        newest = NEWEST_WITHOUT_TRANSACTION_V2[ApiKey.PRODUCE] if is_old else None
        version = connection.version_of(ApiKey.PRODUCE, newest=newest)
        topics: dict[str, list[tuple[int, memoryview]]] = {}
        now = self._clock.monotonic()
        for batch in batches:
            self._metrics.batch_sent(batch, now)
            topic, number = batch.partition
            topics.setdefault(topic, []).append((number, batch.buffer))
        body = write_produce(
            version,
            topics,
            transactional_id=settings.transactional_id,
            acks=settings.acks,
            timeout_ms=settings.request_timeout_ms,
        )
        if settings.acks == 0:
            connection.tell(ApiKey.PRODUCE, version, body)
            for batch in batches:
                self._accumulator.answered(batch, _DONE, 0.0)
                self._metrics.delivered(batch.count)
            self._told(batches)
            return
        self.commit_pacing.sent(now)
        on_answer = partial(self._came, connection, version, batches, now)
        connection.submit_then(on_answer, ApiKey.PRODUCE, version, body)

    # --- answers ------------------------------------------------------------------------------

    def _came(
        self,
        connection: BrokerConnection,
        version: int,
        batches: list[ProducerBatch],
        sent_at: float,
        answer: memoryview | ClientError,
    ) -> None:
        try:
            self._metrics.answered(sent_at)
            if isinstance(answer, ClientError):
                self._lost(batches, answer, in_doubt=answer.outcome == "unknown")
            else:
                self._answered(connection, version, batches, answer)
        except Exception as problem:
            self._broken(problem)

    def _answered(
        self,
        connection: BrokerConnection,
        version: int,
        batches: list[ProducerBatch],
        answer: memoryview,
    ) -> None:
        throttled = partial(connection.throttled, ApiKey.PRODUCE)
        try:
            answers = {each.partition: each for each in read_produce(version, answer, throttled)}
        except MessageMalformed as problem:
            malformed = connection.malformed(ApiKey.PRODUCE, version, problem)
            self._lost(batches, malformed, in_doubt=True)
            return
        refused = any(each.error == _NOT_SETTLED for each in answers.values())
        self.commit_pacing.answered(self._clock.monotonic(), refused=refused)
        for batch in batches:
            answer_of_batch = answers.get(batch.partition)
            if answer_of_batch is None:
                if self._machine is not None:
                    self._machine.taken()
                self._accumulator.requeue(batch, self._retry_at(batch), in_doubt=True)
            else:
                self._take_in(batch, answer_of_batch)
        self._told(batches)

    def _take_in(self, batch: ProducerBatch, answer: ProduceAnswer) -> None:
        _, code, base_offset, append_time, log_start, _ = answer
        retry_at = self._retry_at(batch) if code else 0.0
        verdict = self._accumulator.answered(
            batch, BatchResponse(code, base_offset, append_time, log_start), retry_at
        )
        if not code:
            if self._machine is not None:
                self._machine.taken()
            self._send_errors.over()
            self._metrics.delivered(batch.count)
            return
        error = BrokerError(
            code, ApiKey.PRODUCE.name, f"partition {batch.partition}", answer.message
        )
        if verdict in _FAILED:
            self._fail(batch, error)
        else:
            self._send_errors.met(error, batch.count)
            if action(code, ApiKey.PRODUCE) is Action.REFRESH:
                self._spawn("metadata", self._learn)

    def _lost(
        self, batches: Sequence[ProducerBatch], error: ClientError, *, in_doubt: bool
    ) -> None:
        """No response came: the batches are sent again, perhaps to another leader."""
        self._send_errors.met(error, sum(batch.count for batch in batches))
        # The leader may have written them: the transaction must not be taken for empty.
        if in_doubt and self._machine is not None:
            self._machine.taken()
        for batch in batches:
            self._accumulator.requeue(batch, self._retry_at(batch), in_doubt=in_doubt)
        self._spawn("metadata", self._learn)
        self._told(batches)

    def _retry_at(self, batch: ProducerBatch) -> float:
        return self._clock.monotonic() + self._pause(batch.attempts)

    def _told(self, batches: Sequence[ProducerBatch]) -> None:
        for batch in batches:
            if batch.is_done or batch.parts:
                tell(batch)
        self.wake()
        self.on_progress()

    # --- giving up ----------------------------------------------------------------------------

    def _give_up_expired(self, now: float) -> None:
        for batch in self._accumulator.expired(now):
            self._fail(batch, self._send_errors.expired(batch, self._settings.delivery_timeout_ms))

    def _fail(self, batch: ProducerBatch, error: ClientError) -> None:
        """One batch has failed; in a transaction, so has the transaction."""
        failure: ClientError = error
        if self._machine is not None:
            failure = self._machine.failed(error)
        elif not isinstance(error, DeliveryFailed):
            failure = DeliveryFailed(str(error), outcome=outcome_of(batch), advice=error.advice)
        if failure is not error:
            failure.__cause__ = error
        self._give_up(batch, failure)
        if self._machine is not None:
            self.fail_waiting(failure)

    def fail_waiting(self, error: ClientError) -> None:
        """Fails all batches that are not in flight: they cannot be sent any more. A transaction
        that they belong to can no longer be committed."""
        if self._machine is not None and self._accumulator.partitions_waiting:
            self._machine.failed(error)
        for batch in self._accumulator.incomplete():
            if not batch.is_outstanding:
                self._give_up(batch, error)
        self.on_progress()

    def give_up_all(self) -> None:
        """Fails all batches after `stop`, so that every receipt gets an outcome. A transaction that
        they belong to can no longer be committed or prepared."""
        left = self._accumulator.incomplete()
        if left and self._machine is not None:
            self._machine.failed(
                DeliveryFailed("the producer was closed before all was acknowledged")
            )
        for batch in left:
            message = f"the producer was closed before {batch.partition} had acknowledged this"
            self._give_up(batch, DeliveryFailed(message, outcome=outcome_of(batch)))
        self.on_progress()

    def _give_up(self, batch: ProducerBatch, error: ClientError) -> None:
        self._send_errors.gave_up(batch, error)
        self._accumulator.fail(batch, error)
        self._metrics.failed(batch.count)
        if self._machine is None:
            self.unheard.add(batch, error)
        tell(batch)


async def new_producer_id(cluster: Cluster) -> ProducerIdAndEpoch:
    """A new producer id, in its first epoch. Raises what the broker says."""
    request = producer_id_request()
    answer = await (await cluster.any_broker()).ask(request)
    if answer.code:
        raise BrokerError(answer.code, request.api.name, "a producer id")
    return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
