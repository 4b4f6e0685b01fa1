"""The chart of a bench against Apache Kafka, as SVG: times better, measure by measure.

One panel for each pair of brokers, or for one broker where its numbers are ratios themselves. One
bar for each measure, from 1.0x to the median of the rounds' ratios, on a logarithmic axis; a
whisker from the least to the most, a diamond where the goal is. A cost (seconds, bytes) is turned
over, so that to the right is always better. The text says what the bars say: it is readable without
colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

from bench.common.report import Catalogue, Finding, Spread

WIDTH: Final = 1000
LABELS: Final = 270
NUMBERS: Final = 150
MARGIN: Final = 28
ROW: Final = 26
BAR: Final = 14
PANEL_TITLE: Final = 44
PANEL_GAP: Final = 14
HEADER: Final = 84
AXIS: Final = 34
TICKS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
FONTS: Final = "Helvetica, Arial, DejaVu Sans, sans-serif"
INK, SOFT, LINE, BETTER, WORSE = "#1f2933", "#616e7c", "#e4e7eb", "#0f8b8d", "#d9822b"


class Bar(NamedTuple):
    """One measure: times better, whichever way the measure itself runs."""

    title: str
    spread: Spread
    goal: float | None
    is_dream: bool


class Scale(NamedTuple):
    """A logarithmic axis between two numbers, on the pixels between labels and numbers."""

    least: float
    most: float

    def x(self, value: float) -> float:
        left, right = MARGIN + LABELS, WIDTH - MARGIN - NUMBERS
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return round(left + min(max(share, 0.0), 1.0) * (right - left), 1)


def to_bar(finding: Finding) -> Bar:
    comparison, metric = finding.comparison, finding.metric
    goal = comparison.goal.limit if comparison.goal else None
    is_dream = comparison.goal is not None and comparison.goal.is_dream
    median, least, most = finding.spread
    if metric.higher_is_better:
        return Bar(metric.title, finding.spread, goal, is_dream)
    turned = Spread(1 / median, 1 / most, 1 / least)
    return Bar(metric.title, turned, 1 / goal if goal else None, is_dream)


def panels(catalogue: Catalogue, findings: Sequence[Finding]) -> list[tuple[str, list[Bar]]]:
    drawn = [
        finding
        for finding in findings
        if (finding.comparison.ours, finding.comparison.theirs) in catalogue.pair_titles
        and (finding.comparison.theirs or finding.metric.unit == "x")
    ]
    return [
        (title, [to_bar(finding) for finding in group])
        for title, group in groupby(drawn, lambda finding: catalogue.pair_title(finding.comparison))
    ]


def scale_for(bars: Sequence[Bar]) -> Scale:
    """Whole ticks around everything that is drawn, and never less than 0.5x to 2x."""
    least = min([0.5, *(bar.spread.least for bar in bars)])
    most = max([2.0, *(bar.spread.most for bar in bars), *(bar.goal or 1.0 for bar in bars)])
    below = [tick for tick in TICKS if tick <= least]
    above = [tick for tick in TICKS if tick >= most]
    return Scale(below[-1] if below else TICKS[0], above[0] if above else TICKS[-1])


def text(
    x: float, y: float, words: str, *, size: int = 13, fill: str = INK, extra: str = ""
) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" {extra}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float) -> str:
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" stroke-width="{width}"/>'
    )


def times(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"


def draw_bar(bar: Bar, scale: Scale, top: float) -> Iterator[str]:
    middle = top + ROW / 2
    median, least, most = bar.spread
    colour = BETTER if median >= 1 else WORSE
    left, right = sorted((scale.x(1.0), scale.x(median)))
    yield text(MARGIN + LABELS - 12, middle + 4, bar.title, extra='text-anchor="end"')
    yield (
        f'<rect x="{left}" y="{middle - BAR / 2}" width="{max(right - left, 1.5):.1f}" '
        f'height="{BAR}" rx="2" fill="{colour}"/>'
    )
    low, high = scale.x(least), scale.x(most)
    yield line(low, middle, high, middle, INK, 1.2)
    yield from (line(end, middle - 4, end, middle + 4, INK, 1.2) for end in (low, high))
    if bar.goal is not None:
        yield draw_goal(scale.x(bar.goal), middle, hollow=bar.is_dream)
    numbers = WIDTH - MARGIN - NUMBERS + 14
    yield text(numbers, middle + 4, times(median), extra='font-weight="600"')
    yield text(numbers + 56, middle + 4, f"{times(least)} to {times(most)}", size=11, fill=SOFT)


def draw_goal(x: float, y: float, *, hollow: bool) -> str:
    points = f"{x},{y - 7} {x + 5},{y} {x},{y + 7} {x - 5},{y}"
    fill = "#ffffff" if hollow else INK
    return f'<polygon points="{points}" fill="{fill}" stroke="{INK}" stroke-width="1.2"/>'


def draw_panel(title: str, bars: Sequence[Bar], scale: Scale, top: float) -> Iterator[str]:
    yield text(MARGIN, top + 26, title, size=15, extra='font-weight="600"')
    first, last = top + PANEL_TITLE, top + PANEL_TITLE + ROW * len(bars)
    for tick in TICKS:
        if scale.least <= tick <= scale.most:
            x = scale.x(tick)
            yield line(x, first, x, last, SOFT if tick == 1 else LINE, 1.5 if tick == 1 else 1)
            yield text(x, last + 18, f"{tick:g}x", size=11, fill=SOFT, extra='text-anchor="middle"')
    for index, bar in enumerate(bars):
        yield from draw_bar(bar, scale, first + ROW * index)


def draw_header(title: str, facts: Mapping[str, Any]) -> Iterator[str]:
    yield text(MARGIN, 36, title, size=21, extra='font-weight="700"')
    memory = facts["memory_bytes"] / 2**30
    said = (
        f"Apache Kafka {facts['apache_kafka']}, Onceflow {facts['onceflow']}, {facts['cores']} "
        f"cores, {memory:.0f} GiB, Linux {facts['kernel']}, Python {facts['python']}, "
        f"{facts['date'][:10]}"
    )
    yield text(MARGIN, 58, said, size=12, fill=SOFT)
    yield draw_goal(MARGIN + 5, 74, hollow=False)
    yield text(MARGIN + 16, 78, "goal", size=12, fill=SOFT)
    yield draw_goal(MARGIN + 61, 74, hollow=True)
    meaning = "dream    bar: median of the rounds    whisker: least to most    right is better"
    yield text(MARGIN + 72, 78, meaning, size=12, fill=SOFT, extra='xml:space="preserve"')


def draw(catalogue: Catalogue, findings: Sequence[Finding], facts: Mapping[str, Any]) -> str:
    """The whole picture, as the text of an SVG file; empty where there is nothing to compare."""
    shown = panels(catalogue, findings)
    if not shown:
        return ""
    scale = scale_for([bar for _, bars in shown for bar in bars])
    parts = list(draw_header(catalogue.title, facts))
    top = float(HEADER)
    for title, bars in shown:
        parts += draw_panel(title, bars, scale, top)
        top += PANEL_TITLE + ROW * len(bars) + AXIS + PANEL_GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top:.0f}" '
        f'viewBox="0 0 {WIDTH} {top:.0f}" font-family="{FONTS}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
