"""What a client counts, under the names that Kafka's clients use for it.

A `Meter` counts amounts, and knows how much there was a second lately, how much on average and at
most. It looks back over `WINDOW_S`, in steps, so that adding is a comparison and an addition.
Reading changes nothing, so that other threads may read. `snapshot` is a plain mapping of names to
numbers; totals never go back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from onceflow.types import TopicPartition

WINDOW_S: Final = 30.0
STEP_S: Final = 2.0
_STEPS: Final = int(WINDOW_S / STEP_S)


class _Step(NamedTuple):
    """What came within one step of time."""

    number: int
    times: int
    total: float
    longest: float


class Meter:
    """Counts amounts; one that comes now and then costs nothing in between."""

    __slots__ = ("_count", "_longest", "_now", "_since", "_steps", "_total", "count", "total")

    def __init__(self, now: float) -> None:
        self.count = 0
        self.total = 0.0
        self._since = now
        self._steps: list[_Step] = []
        self._now = int(now / STEP_S)
        self._count, self._total, self._longest = 0, 0.0, 0.0

    def add(self, amount: float, now: float) -> None:
        """Once more, of this size."""
        number = int(now / STEP_S)
        if number != self._now:
            self._turn(number)
        self.count += 1
        self.total += amount
        self._count += 1
        self._total += amount
        self._longest = max(self._longest, amount)

    def _turn(self, number: int) -> None:
        self._steps.append(_Step(self._now, self._count, self._total, self._longest))
        self._steps = [each for each in self._steps if each.number > number - _STEPS]
        self._now, self._count, self._total, self._longest = number, 0, 0.0, 0.0

    def _lately(self, now: float) -> list[_Step]:
        oldest = int(now / STEP_S) - _STEPS
        steps = [*self._steps, _Step(self._now, self._count, self._total, self._longest)]
        return [each for each in steps if each.number > oldest]

    def rate(self, now: float) -> float:
        """Amounts a second over the window, or since it was made if that is shorter."""
        span = max(STEP_S, min(WINDOW_S, now - self._since))
        return sum(each.total for each in self._lately(now)) / span

    def average(self, now: float) -> float:
        """Of the amounts of the window; 0 when there were none."""
        steps = self._lately(now)
        times = sum(each.times for each in steps)
        return sum(each.total for each in steps) / times if times else 0.0

    def longest(self, now: float) -> float:
        """The largest amount of the window; 0 when there was none."""
        return max((each.longest for each in self._lately(now)), default=0.0)


class Metric(NamedTuple):
    """One number of a snapshot."""

    name: str
    meaning: str
    is_total: bool
    """It never goes back: a counter. Else it is what holds now."""
    read: Callable[[float], float]
    of: TopicPartition | None = None
    """None: of the client as a whole."""

    @property
    def key(self) -> str:
        """Its name in a snapshot."""
        return self.name if self.of is None else f"{self.of}.{self.name}"


def amounts(name: str, meaning: str, meter: Meter) -> tuple[Metric, ...]:
    """How many in total, and a second: `name` is Kafka's without its last word."""
    return (
        Metric(f"{name}-total", f"{meaning}, so far", True, lambda _: meter.total),
        Metric(f"{name}-rate", f"{meaning}, a second", False, meter.rate),
    )


def hourly(name: str, meaning: str, meter: Meter) -> tuple[Metric, ...]:
    """As `amounts`, of what is rare."""
    return (
        Metric(f"{name}-total", f"{meaning}, so far", True, lambda _: meter.total),
        Metric(
            f"{name}-rate-per-hour",
            f"{meaning}, an hour",
            False,
            lambda now: 3600 * meter.rate(now),
        ),
    )


def sizes(name: str, meaning: str, meter: Meter) -> tuple[Metric, ...]:
    """On average, and at most."""
    return (
        Metric(f"{name}-avg", f"{meaning}, on average", False, meter.average),
        Metric(f"{name}-max", f"{meaning}, at most", False, meter.longest),
    )


def durations(name: str, meaning: str, meter: Meter) -> tuple[Metric, ...]:
    """In milliseconds, on average and at most."""
    return (
        Metric(f"{name}-avg", f"{meaning}, on average, ms", False, meter.average),
        Metric(f"{name}-max", f"{meaning}, at most, ms", False, meter.longest),
    )


NEVER: Final = -1.0
"""What Kafka says of the time since something that has not happened yet."""


def ago(name: str, meaning: str, when: Callable[[], float | None]) -> Metric:
    """Seconds since a moment."""

    def read(now: float) -> float:
        moment = when()
        return NEVER if moment is None else max(0.0, now - moment)

    return Metric(f"{name}-seconds-ago", f"seconds since {meaning}; -1: never", False, read)


def snapshot(metrics: tuple[Metric, ...], now: float) -> Mapping[str, float]:
    """All of them at one moment."""
    return {each.key: each.read(now) for each in metrics}
