"""The consumer for programs without asyncio: the same names, and every call blocks.

One thread polls at a time; others wait for their turn. When a thread is interrupted during a poll,
its records are not lost: the next poll returns them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from onceflow.blocking.handover import Handover, in_a_listener
from onceflow.blocking.loop import LoopThread
from onceflow.blocking.twin import Twin, blocking, plain
from onceflow.client import ConsumerMetrics, Subscription
from onceflow.client.consumer import consumer as twin
from onceflow.types import TopicPartition

P = ParamSpec("P")
T = TypeVar("T")
Partitions = Collection[TopicPartition]


class RebalanceListener:
    """Called while a thread polls, when partitions are assigned or revoked; it may commit and seek.
    `poll` raises what it raises.

    >>> class Printing(RebalanceListener):
    ...     def on_partitions_assigned(self, partitions):
    ...         print("assigned", *partitions)
    ...     def on_partitions_revoked(self, partitions):
    ...         print("revoked", *partitions)
    >>> with Consumer(bootstrap, group_id="shop") as consumer:
    ...     consumer.subscribe(["orders"], Printing())
    ...     while not consumer.assignment:
    ...         _ = consumer.poll(0.1)
    assigned orders-0
    revoked orders-0
    """

    def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Called after each rebalance with the partitions that were added, perhaps none."""

    def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Called before these partitions are given up: until this returns they are still this
        member's, and their offsets can be committed."""

    def on_partitions_lost(self, partitions: Partitions) -> None:
        """Called when these partitions may belong to other members already: their offsets can no
        longer be committed."""
        self.on_partitions_revoked(partitions)


class _OnAnotherThread(twin.RebalanceListener):
    """Calls the application's listener on another thread: the listener may make blocking calls, for
    which the client's own thread has to stay free."""

    def __init__(self, listener: RebalanceListener, loop: LoopThread) -> None:
        self._listener = listener
        self._loop = loop

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        await self._tell(self._listener.on_partitions_assigned, partitions)

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        await self._tell(self._listener.on_partitions_revoked, partitions)

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        await self._tell(self._listener.on_partitions_lost, partitions)

    async def _tell(self, call: Callable[[Partitions], None], partitions: Partitions) -> None:
        with in_a_listener.by(self._loop):
            await asyncio.to_thread(call, partitions)


def _in_turn(
    method: Callable[Concatenate[twin.Consumer, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Consumer, P], T]:
    """The twin of a method that one thread may call at a time."""

    @wraps(method)
    def call(self: Consumer, /, *args: P.args, **named: P.kwargs) -> T:
        return self._handover.hand_out(lambda: method(self._client, *args, **named))

    return call


class Consumer(Twin[twin.Consumer]):
    """Reads records, alone or as a member of a group.

    Settings have Kafka's names: with dots in a mapping, with underscores as keywords.

    >>> from onceflow.blocking import Producer
    >>> with Producer(bootstrap) as producer:
    ...     _ = producer.send("orders", b"paid")
    >>> with Consumer(bootstrap, group_id="shop", auto_offset_reset="earliest") as consumer:
    ...     consumer.subscribe(["orders"])
    ...     for record in consumer:
    ...         print(record.topic, record.offset, record.value)
    ...         break
    orders 0 b'paid'
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        settings: Mapping[str, object] | None = None,
        **named: object,
    ) -> None:
        super().__init__(twin.Consumer(bootstrap, {**(settings or {}), **named}))
        self._handover = Handover(self._loop, self._client._take_back)

    def subscribe(
        self,
        topics: Iterable[str] = (),
        listener: RebalanceListener | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
    ) -> None:
        """Shares these topics, or all whose whole name matches the pattern, with the other members
        of the group, from the next poll on. New topics and new partitions are included."""
        heard = None if listener is None else _OnAnotherThread(listener, self._loop)
        self._loop.call(lambda: self._client.subscribe(topics, heard, pattern=pattern))

    assign = blocking(twin.Consumer.assign)
    unsubscribe = blocking(twin.Consumer.unsubscribe)
    pause = plain(twin.Consumer.pause)
    resume = plain(twin.Consumer.resume)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned now."""
        return self._loop.call(lambda: self._client.assignment)

    @property
    def subscription(self) -> Subscription | None:
        """The current subscription, if there is one."""
        return self._loop.call(lambda: self._client.subscription)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return self._loop.call(lambda: self._client.paused)

    poll = _in_turn(twin.Consumer.poll)
    poll_by_partition = _in_turn(twin.Consumer.poll_by_partition)
    poll_table = _in_turn(twin.Consumer.poll_table)
    __next__ = _in_turn(twin.Consumer.__anext__)

    def __iter__(self) -> Self:
        return self

    seek = blocking(twin.Consumer.seek)
    seek_to_beginning = blocking(twin.Consumer.seek_to_beginning)
    seek_to_end = blocking(twin.Consumer.seek_to_end)
    seek_to_timestamp = blocking(twin.Consumer.seek_to_timestamp)
    rewind = blocking(twin.Consumer.rewind)
    position = blocking(twin.Consumer.position)
    lag = blocking(twin.Consumer.lag)
    metrics = plain(twin.Consumer.metrics)

    @property
    def measured(self) -> ConsumerMetrics:
        """The metrics one by one; `metrics` gives them all at once."""
        return self._client.measured

    commit = blocking(twin.Consumer.commit)
    committed = blocking(twin.Consumer.committed)
    group_metadata = plain(twin.Consumer.group_metadata)
