"""Records that were not delivered, until somebody has heard of it.

Who awaits a receipt hears what became of that record. Who never does would not: so `flush` and the
end of a producer raise for all records that failed and whose receipts nobody has awaited, once.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from onceflow.client.errors import ClientError, DeliveryFailed
from onceflow.client.producer.batch import Batch
from onceflow.client.types import TopicPartition

_MOST_KEPT: Final = 10_000
"""Of older ones only the number of records is kept."""
_MOST_NAMED: Final = 3


class Failure:
    """Of one batch, which itself is let go. The receipts say which records were heard of."""

    __slots__ = ("_all", "_heard", "error", "partition", "records")

    def __init__(self, batch: Batch, error: ClientError, among: OrderedDict[Failure, None]) -> None:
        self.partition: Final[TopicPartition] = batch.partition
        self.records: Final = batch.count
        self.error: Final = error
        self._heard: set[int] = set()
        self._all = among

    @property
    def unheard(self) -> int:
        """How many records."""
        return self.records - len(self._heard)

    def hear(self, *numbers: int) -> None:
        """Whoever awaited the receipts of these was told. When all are heard of nothing is kept:
        the error, once raised, holds on to whatever was at hand where it was."""
        self._heard.update(numbers)
        if not self.unheard:
            self._all.pop(self, None)


class UnheardFailures:
    """Of one producer without transactions: in one, the commit fails."""

    __slots__ = ("_failures", "_first", "_older")

    def __init__(self) -> None:
        self._failures: OrderedDict[Failure, None] = OrderedDict()
        self._older = 0
        self._first: Failure | None = None
        """Of the older ones."""

    def __bool__(self) -> bool:
        return bool(self._failures) or self._older > 0

    def add(self, batch: Batch, error: ClientError) -> None:
        """None of its records was delivered, as far as is known."""
        batch.failure = Failure(batch, error, self._failures)
        self._failures[batch.failure] = None
        if len(self._failures) > _MOST_KEPT:
            oldest, _ = self._failures.popitem(last=False)
            self._older += oldest.unheard
            self._first = self._first or oldest

    def take(self) -> DeliveryFailed | None:
        """What is to be raised, if anything; the next time it is not there any more."""
        failures = list(self._failures)
        older, first = self._older, self._first
        self._failures.clear()
        self._older, self._first = 0, None
        if not failures and first is None:
            return None
        first = first or failures[0]
        return _raised(older + sum(each.unheard for each in failures), first, failures)


def _raised(records: int, first: Failure, failures: list[Failure]) -> DeliveryFailed:
    places = sorted({first.partition, *(each.partition for each in failures)})
    named = ", ".join(map(str, places[:_MOST_NAMED]))
    more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
    who = "1 record was" if records == 1 else f"{records} records were"
    is_unknown = any(each.error.outcome == "unknown" for each in (first, *failures))
    reason = "" if all(_is_same(first, each) for each in failures) else "the first reason: "
    made = DeliveryFailed(
        f"{who} not delivered to {named}{more}, and nobody has awaited the receipts; "
        f"{reason}{first.error}",
        outcome="unknown" if is_unknown else "not applied",
        advice=first.error.advice,
    )
    made.__cause__ = first.error
    return made


def _is_same(one: Failure, other: Failure) -> bool:
    return str(one.error) == str(other.error)
