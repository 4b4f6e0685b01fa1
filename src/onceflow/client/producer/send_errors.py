"""What keeps a producer's records from being sent: told in the log, and kept for the message of who
waits in vain."""

from __future__ import annotations

import logging

from onceflow.client.errors import ClientError, DeliveryFailed, Outcome, TransactionAborted
from onceflow.client.events import PRODUCING, Recurring
from onceflow.client.producer.batch import Batch
from onceflow.runtime import Clock


class Troubles:
    """Of one producer."""

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

    def gave_up(self, batch: Batch, error: ClientError) -> None:
        """Its records will not be there, as far as is known."""
        # Who aborts a transaction knows that.
        first = logging.DEBUG if isinstance(error, TransactionAborted) else logging.WARNING
        what = "not delivered (records: %(records)d)"
        self._tell("undelivered", what, error, batch.count, first)

    def expired(self, batch: Batch, delivery_timeout_ms: int) -> DeliveryFailed:
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


def outcome_of(batch: Batch) -> Outcome:
    """Whether it is known that its records are not there."""
    return "unknown" if batch.is_outstanding or batch.in_doubt else "not applied"
