"""What the numbers say: medians with their spread, ratios within each round, goals beside them.

A ratio is taken between two brokers' turns in the same round, since a shared machine is faster in
one round than in the next; shown are the median of the rounds, the least and the most. A goal is
reached or missed by the median; nothing here fails because of a number.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

Samples = Mapping[str, Mapping[str, Sequence[float | None]]]
"""Metric, target, round: None where a turn failed."""


class Metric(NamedTuple):
    title: str
    unit: str
    higher_is_better: bool = True
    decimals: int = 0
    per: int = 1
    """What the number is divided by where it is shown."""
    bytes_each: int = 0
    """Of a record, where megabytes a second say more."""


class Goal(NamedTuple):
    """What a number, or its ratio to the other broker's, should be: at least or, if lower is
    better, at most."""

    limit: float
    is_dream: bool = False


class Comparison(NamedTuple):
    """Ours beside theirs; beside a goal only, where `theirs` is empty."""

    ours: str
    theirs: str
    metric: str
    goal: Goal | None = None


class Catalogue(NamedTuple):
    """All that a bench may find out: its metrics by name, and what is compared."""

    title: str
    metrics: Mapping[str, Metric]
    comparisons: Sequence[Comparison]
    pair_titles: Mapping[tuple[str, str], str]
    """Of the pairs that are drawn, one panel each."""

    def pair_title(self, comparison: Comparison) -> str:
        pair = comparison.ours, comparison.theirs
        return self.pair_titles.get(pair, f"{comparison.ours} against its limits")


def compare(ours: str, theirs: str, goals: Mapping[str, Goal | None]) -> list[Comparison]:
    """One comparison for each metric, with its goal."""
    return [Comparison(ours, theirs, metric, goal) for metric, goal in goals.items()]


class Spread(NamedTuple):
    median: float
    least: float
    most: float


class Finding(NamedTuple):
    """A comparison with its numbers; `reached` is None where there is no goal."""

    comparison: Comparison
    metric: Metric
    spread: Spread
    reached: bool | None


def spread(values: Iterable[float | None]) -> Spread | None:
    there = [value for value in values if value is not None]
    return Spread(statistics.median(there), min(there), max(there)) if there else None


def ratios(samples: Samples, comparison: Comparison) -> list[float]:
    """Ours to theirs, round by round; ours alone where there is nobody to compare with.

    A cost of nothing was too small for its clock: there is no ratio to it.
    """
    targets = samples.get(comparison.metric, {})
    ours = targets.get(comparison.ours, [])
    if not comparison.theirs:
        return [value for value in ours if value is not None]
    theirs = targets.get(comparison.theirs, [])
    return [a / b for a, b in zip(ours, theirs, strict=False) if a and b]


def find(catalogue: Catalogue, samples: Samples) -> list[Finding]:
    """All comparisons that there are numbers for."""
    findings = []
    for comparison in catalogue.comparisons:
        if (numbers := spread(ratios(samples, comparison))) is not None:
            metric = catalogue.metrics[comparison.metric]
            reached = is_reached(metric, comparison.goal, numbers.median)
            findings.append(Finding(comparison, metric, numbers, reached))
    return findings


def is_reached(metric: Metric, goal: Goal | None, value: float) -> bool | None:
    if goal is None:
        return None
    return value >= goal.limit if metric.higher_is_better else value <= goal.limit


def number(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}"


def with_spread(values: Spread, decimals: int, unit: str) -> str:
    """A single round has no spread."""
    median = f"{number(values.median, decimals)}{unit}"
    if values.least == values.most:
        return median
    return f"{median} [dim]{number(values.least, decimals)} to {number(values.most, decimals)}[/]"


def cell(metric: Metric, values: Sequence[float | None]) -> str:
    if (numbers := spread(values)) is None:
        return ""
    median, least, most = (number(value / metric.per, metric.decimals) for value in numbers)
    if metric.bytes_each:
        median += f" ({number(numbers.median * metric.bytes_each / 1e6, 0)} MB/s)"
    return median if numbers.least == numbers.most else f"{median}\n[dim]{least} to {most}[/]"


def show_numbers(
    console: Console, catalogue: Catalogue, samples: Samples, targets: Sequence[str]
) -> None:
    table = Table(title="Median, least and most of the rounds", title_justify="left")
    table.add_column("measure", no_wrap=True)
    table.add_column("unit")
    for target in targets:
        table.add_column(target, justify="right")
    for name, metric in catalogue.metrics.items():
        if name in samples:
            row = [cell(metric, samples[name].get(target, [])) for target in targets]
            table.add_row(metric.title, metric.unit, *row)
    console.print(table)


def show_findings(console: Console, catalogue: Catalogue, findings: Sequence[Finding]) -> None:
    for title, group in groupby(findings, lambda finding: catalogue.pair_title(finding.comparison)):
        table = Table(title=title, title_justify="left")
        table.add_column("measure", no_wrap=True)
        table.add_column("", justify="right", no_wrap=True)
        table.add_column("goal", justify="right", no_wrap=True)
        table.add_column("")
        for finding in group:
            table.add_row(*finding_row(finding))
        console.print(table)


def finding_row(finding: Finding) -> tuple[str, str, str, str]:
    comparison, metric = finding.comparison, finding.metric
    unit = "x" if comparison.theirs or metric.unit == "x" else f" {metric.unit}"
    decimals = 2 if comparison.theirs else metric.decimals
    value = with_spread(finding.spread, decimals, unit)
    if comparison.goal is None:
        return metric.title, value, "", ""
    sign = "≥" if metric.higher_is_better else "≤"
    goal = f"{sign} {comparison.goal.limit:g}{unit}"
    if comparison.goal.is_dream:
        goal = f"dream {goal}"
    return metric.title, value, goal, "[green]reached[/]" if finding.reached else "[red]missed[/]"
