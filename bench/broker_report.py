"""What the numbers say: medians with their spread, ratios within each round, goals beside them.

A ratio is taken between two brokers' turns in the same round, since a shared machine is faster in
one round than in the next; shown are the median of the rounds, the least and the most. A goal is
reached or missed by the median; nothing here fails because of a number.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

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


METRICS: Final = {
    "produce-1k": Metric("produce 1 KB", "k/s", per=1000, bytes_each=1024),
    "produce-100": Metric("produce 100 B", "k/s", per=1000, bytes_each=100),
    "produce-large-1k": Metric("produce 1 KB, 1 MB batches", "k/s", per=1000, bytes_each=1024),
    "produce-large-100": Metric("produce 100 B, 1 MB batches", "k/s", per=1000, bytes_each=100),
    "java-1k": Metric("Java produce 1 KB", "k/s", per=1000, bytes_each=1024),
    "java-100": Metric("Java produce 100 B", "k/s", per=1000, bytes_each=100),
    "consume-1k": Metric("consume 1 KB", "k/s", per=1000, bytes_each=1024),
    "consume-100": Metric("consume 100 B", "k/s", per=1000, bytes_each=100),
    "cpu-produce-1k": Metric("broker CPU, produce 1 KB", "s/GB", False, 2),
    "cpu-produce-100": Metric("broker CPU, produce 100 B", "s/GB", False, 2),
    "cpu-consume-1k": Metric("broker CPU, consume 1 KB", "s/GB", False, 2),
    "cpu-consume-100": Metric("broker CPU, consume 100 B", "s/GB", False, 2),
    "latency-p50": Metric("acked latency p50, socket", "ms", False, 3),
    "latency-p99": Metric("acked latency p99, socket", "ms", False, 3),
    "latency-librdkafka-p50": Metric("acked latency p50, librdkafka", "ms", False, 3),
    "latency-librdkafka-p99": Metric("acked latency p99, librdkafka", "ms", False, 3),
    "growth": Metric("50 connections x 200 partitions", "k/s", decimals=1, per=1000),
    "busy": Metric("20 busy connections", "k/s", decimals=1, per=1000),
    "idle": Metric("rate kept beside 500 idle ones", "x", decimals=2),
    "start-empty": Metric("start, empty directory", "s", False, 2),
    "start": Metric("start to first connection", "s", False, 2),
    "start-answer": Metric("start to first answer", "s", False, 2),
    "memory": Metric("resident, 100 partitions", "MB", False),
}
PRODUCE: Final = tuple(name for name in METRICS if name.startswith(("produce", "java")))
CONSUME: Final = tuple(name for name in METRICS if name.startswith("consume"))
CPU: Final = tuple(name for name in METRICS if name.startswith("cpu"))
P50: Final = ("latency-p50", "latency-librdkafka-p50")


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


def _compare(ours: str, theirs: str, goals: Mapping[str, Goal | None]) -> list[Comparison]:
    return [Comparison(ours, theirs, metric, goal) for metric, goal in goals.items()]


COMPARISONS: Final = (
    *_compare(
        "ours-os",
        "kafka",
        {
            **dict.fromkeys((*PRODUCE, *CONSUME), Goal(1.0)),
            **dict.fromkeys(CPU, Goal(0.6)),
            **dict.fromkeys((*P50, "growth", "start", "memory")),
        },
    ),
    *_compare(
        "ours-fsync",
        "kafka-flush",
        {
            **dict.fromkeys(PRODUCE, Goal(2.0)),
            **dict.fromkeys(P50, Goal(0.8)),
            **dict.fromkeys((*CONSUME, *CPU, "growth")),
        },
    ),
    *_compare(
        "ours-fsync",
        "kafka",
        {
            **dict.fromkeys(PRODUCE, Goal(1.0, is_dream=True)),
            "growth": Goal(1.0),
            **dict.fromkeys((*P50, "start", "memory")),
        },
    ),
    *(
        Comparison(ours, "", metric, Goal(limit))
        for ours in ("ours-fsync", "ours-os")
        for metric, limit in (("start", 0.4), ("start-empty", 0.4), ("memory", 250), ("idle", 0.9))
    ),
)
PAIR_TITLES: Final = {
    (
        "ours-os",
        "kafka",
    ): 'Not synced: Onceflow with durability "os" against Apache Kafka\'s default',
    ("ours-fsync", "kafka-flush"): "Synced: Onceflow against Apache Kafka flushing every message",
    ("ours-fsync", "kafka"): "Synced against unsynced: Onceflow against Apache Kafka's default",
}


class Spread(NamedTuple):
    median: float
    least: float
    most: float


class Finding(NamedTuple):
    """A comparison with its numbers; `reached` is None where there is no goal."""

    comparison: Comparison
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


def find(samples: Samples) -> list[Finding]:
    """All comparisons that there are numbers for."""
    findings = []
    for comparison in COMPARISONS:
        if (numbers := spread(ratios(samples, comparison))) is not None:
            findings.append(Finding(comparison, numbers, is_reached(comparison, numbers.median)))
    return findings


def is_reached(comparison: Comparison, value: float) -> bool | None:
    if comparison.goal is None:
        return None
    if METRICS[comparison.metric].higher_is_better:
        return value >= comparison.goal.limit
    return value <= comparison.goal.limit


def number(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}"


def with_spread(values: Spread, decimals: int, unit: str) -> str:
    return (
        f"{number(values.median, decimals)}{unit} "
        f"[dim]{number(values.least, decimals)} to {number(values.most, decimals)}[/]"
    )


def cell(metric: Metric, values: Sequence[float | None]) -> str:
    if (numbers := spread(values)) is None:
        return ""
    median, least, most = (number(value / metric.per, metric.decimals) for value in numbers)
    if metric.bytes_each:
        median += f" ({number(numbers.median * metric.bytes_each / 1e6, 0)} MB/s)"
    return f"{median}\n[dim]{least} to {most}[/]"


def show_numbers(console: Console, samples: Samples, targets: Sequence[str]) -> None:
    table = Table(title="Median, least and most of the rounds", title_justify="left")
    table.add_column("measure", no_wrap=True)
    table.add_column("unit")
    for target in targets:
        table.add_column(target, justify="right")
    for name, metric in METRICS.items():
        if name in samples:
            row = [cell(metric, samples[name].get(target, [])) for target in targets]
            table.add_row(metric.title, metric.unit, *row)
    console.print(table)


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    for (ours, theirs), group in groupby(
        findings, lambda finding: (finding.comparison.ours, finding.comparison.theirs)
    ):
        title = PAIR_TITLES.get((ours, theirs), f"{ours} against its limits")
        table = Table(title=title, title_justify="left")
        table.add_column("measure", no_wrap=True)
        table.add_column("ratio" if theirs else "value", justify="right", no_wrap=True)
        table.add_column("goal", justify="right", no_wrap=True)
        table.add_column("")
        for finding in group:
            table.add_row(*finding_row(finding))
        console.print(table)


def finding_row(finding: Finding) -> tuple[str, str, str, str]:
    comparison = finding.comparison
    metric = METRICS[comparison.metric]
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
