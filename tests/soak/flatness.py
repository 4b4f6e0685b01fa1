"""Whether a series of measurements is flat: its trend over the second half, by robust statistics.

The first half is for warming up. Of the second, the slope is the median of the slopes between all
pairs (Theil and Sen): a few outliers, and what rises and falls in periods, do not move it. What it
makes of the whole half, and what lies between the medians of its two quarters, must both be above
the bound before a series is said to grow: the one can be fooled by a step, the other by a wave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

MOST_POINTS = 120
"""Pairs are compared, so of long series a part is taken: medians of neighbours."""


class Point(NamedTuple):
    """One measurement: seconds since the start, and the value."""

    at: float
    value: float


class Bound(NamedTuple):
    """How much a series may grow from one quarter of the run to the next."""

    absolute: float
    relative: float = 0.0

    def allowed(self, level: float) -> float:
        return max(self.absolute, self.relative * level)


class Trend(NamedTuple):
    """What a series did in the second half."""

    third: float
    """The median of the third quarter, and that of the fourth."""
    fourth: float
    slope: float
    """A second."""
    seconds: float
    """Between the middles of the two quarters."""

    @property
    def growth(self) -> float:
        """From one quarter to the next, as the more cautious of the two ways sees it."""
        return min(self.fourth - self.third, self.slope * self.seconds)

    def is_flat(self, bound: Bound) -> bool:
        return self.growth <= bound.allowed(self.third)


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most so many points: each the median of some that follow one another."""
    size = -(-len(points) // most) if points else 1
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [
        Point(median(each.at for each in group), median(each.value for each in group))
        for group in groups
    ]


def theil_sen(points: Sequence[Point]) -> float:
    """The median of the slopes between all pairs."""
    slopes = [
        (later.value - earlier.value) / (later.at - earlier.at)
        for earlier, later in combinations(points, 2)
        if later.at > earlier.at
    ]
    return median(slopes) if slopes else 0.0


def trend(points: Sequence[Point]) -> Trend:
    """Of the second half of the time that the points span."""
    first, last = points[0].at, points[-1].at
    middle, three_quarters = first + (last - first) / 2, first + (last - first) * 3 / 4
    third = [each.value for each in points if middle <= each.at < three_quarters]
    fourth = [each.value for each in points if each.at >= three_quarters]
    if len(third) < 3 or len(fourth) < 3:
        raise ValueError(f"{len(points)} measurements are too few to see a trend")
    half = thinned([each for each in points if each.at >= middle])
    return Trend(median(third), median(fourth), theil_sen(half), (last - first) / 4)


def growing(
    series: Mapping[str, Sequence[Point]], bound_of: Callable[[str], Bound]
) -> dict[str, Trend]:
    """The series that are not flat, by their bounds."""
    trends = {name: trend(points) for name, points in series.items()}
    return {name: found for name, found in trends.items() if not found.is_flat(bound_of(name))}
