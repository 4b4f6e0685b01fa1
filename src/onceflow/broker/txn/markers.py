"""Markers, the batches that end a transaction in its partitions."""

from __future__ import annotations

from typing import Protocol

from onceflow.broker.requests import refusal_of
from onceflow.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, HostedPartition, Topics
from onceflow.errors import OnceflowError
from onceflow.log import Purpose, Ticket
from onceflow.producers import judge_marker
from onceflow.records import Marker, MarkerType, marker
from onceflow.runtime import Clock
from onceflow.types import TopicPartition
from onceflow.wire import ErrorCode


class MarkedOffsets(Protocol):
    """The group coordinator, as far as markers concern it."""

    def marker_appended(
        self, partition: int, producer_id: int, ticket: Ticket, *, commit: bool
    ) -> None:
        """A marker in a partition of `__consumer_offsets` decides about offsets too."""
        ...


class Markers:
    """Writes markers, for the coordinator and for operators."""

    def __init__(self, topics: Topics, clock: Clock, groups: MarkedOffsets) -> None:
        self._topics = topics
        self._clock = clock
        self._groups = groups

    def write(
        self,
        place: TopicPartition,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
    ) -> Ticket | None:
        """Ends the producer's transaction in one partition; None where that is gone. Raises what
        `HostedPartition.append` does."""
        partition = self._topics.partition(*place)
        if partition is None:
            # Its topic was deleted. An error here would keep the transaction unfinished for ever.
            return None
        decision = Marker(
            producer_id,
            epoch,
            MarkerType.COMMIT if commit else MarkerType.ABORT,
            coordinator_epoch,
            self._clock.wall_ms(),
        )
        ticket = _append(partition, decision)
        if place.topic == OFFSETS_TOPIC:
            # In the same step as the append, so that the groups apply markers in log order.
            self._groups.marker_appended(place.partition, producer_id, ticket, commit=commit)
        return ticket

    def write_checked(
        self,
        place: TopicPartition,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> tuple[ErrorCode, Ticket | None]:
        """`write` for a request that may be late or wrong: the partition checks it."""
        if producer_id < 0 or epoch < 0:
            return ErrorCode.INVALID_REQUEST, None
        if place.topic == TRANSACTIONS_TOPIC:  # in which no transaction is ever open
            return ErrorCode.INVALID_TOPIC_EXCEPTION, None
        partition = self._topics.partition(*place)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        code = judge_marker(
            partition.producers.find(producer_id),
            epoch,
            coordinator_epoch,
            transaction_version=transaction_version,
        )
        if code:
            return code, None
        try:
            ticket = self.write(
                place, producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch
            )
        except OnceflowError as error:
            return refusal_of(error).code, None
        return ErrorCode.NONE, ticket


def _append(partition: HostedPartition, decision: Marker) -> Ticket:
    batch = marker(
        decision.producer_id,
        decision.producer_epoch,
        commit=decision.type is MarkerType.COMMIT,
        coordinator_epoch=decision.coordinator_epoch,
        timestamp_ms=decision.timestamp_ms,
    )
    return partition.append(batch, marker=decision, purpose=Purpose.TRANSACTION_ENDS)[1]
