"""The picture of a demo, as SVG: orders in and rows committed over time, each strike where it was,
and the numbers that it comes down to. The text says what the colours say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from onceflow.demo.count import Sample
from onceflow.demo.strikes import Survived
from onceflow.demo.verdict import Figure, Outcome, figures, headline

WIDTH: Final = 1000
MARGIN: Final = 40
TILES_TOP: Final = 92
TILE_HEIGHT: Final = 74
PLOT_TOP: Final = 238
PLOT_HEIGHT: Final = 330
PLOT_LEFT: Final = MARGIN + 52
ROW: Final = 24
FONTS: Final = "Helvetica, Arial, DejaVu Sans, sans-serif"
INK, SOFT, LINE, PAPER = "#1f2933", "#616e7c", "#e4e7eb", "#ffffff"
GOOD, BAD, IN, OUT, FILL = "#0f8b8d", "#c4341e", "#9aa5b1", "#0f8b8d", "#d5eeee"
_STEPS: Final = (1, 2, 5)


class Scale(NamedTuple):
    """From seconds and rows to points of the plot."""

    seconds: float
    rows: int

    def x(self, seconds: float) -> float:
        return round(PLOT_LEFT + seconds / self.seconds * (WIDTH - MARGIN - PLOT_LEFT), 1)

    def y(self, rows: float) -> float:
        return round(PLOT_TOP + PLOT_HEIGHT * (1 - rows / self.rows), 1)


def draw(outcome: Outcome) -> str:
    """The text of an SVG file."""
    height = PLOT_TOP + PLOT_HEIGHT + 74 + ROW * len(outcome.survived)
    parts = [
        *_header(outcome),
        *_tiles(figures(outcome.found)),
        *_plot(outcome.samples, outcome.survived),
        *_legend(outcome.survived, PLOT_TOP + PLOT_HEIGHT + 62),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="{FONTS}">\n'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(
    x: float, y: float, words: str, *, size: int = 13, fill: str = INK, extra: str = ""
) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" {extra}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, extra: str = "") -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" {extra}/>'


def _header(outcome: Outcome) -> Iterator[str]:
    colour = GOOD if outcome.found.is_exact else BAD
    yield _text(MARGIN, 48, headline(outcome), size=22, fill=colour, extra='font-weight="700"')
    yield _text(
        MARGIN,
        72,
        "onceflow demo: orders through a pipeline on Spark, killed with SIGKILL at the worst "
        "moments; counted by confluent-kafka",
        fill=SOFT,
    )


def _tiles(shown: Sequence[Figure]) -> Iterator[str]:
    """One for each number."""
    step = (WIDTH - 2 * MARGIN + 10) / len(shown)
    for index, figure in enumerate(shown):
        x = round(MARGIN + index * step, 1)
        colour = INK if figure.must_be is None else GOOD if figure.is_good else BAD
        yield (
            f'<rect x="{x}" y="{TILES_TOP}" width="{step - 10:.1f}" height="{TILE_HEIGHT}" rx="6" '
            f'fill="#f5f7fa"/>'
        )
        number = f"{figure.number:,}"
        yield _text(x + 12, TILES_TOP + 38, number, size=22, fill=colour, extra='font-weight="700"')
        yield _text(x + 12, TILES_TOP + 60, figure.label, size=12, fill=SOFT)


def ticks(most: float, wanted: int) -> list[int]:
    """Round numbers from 0 to the most, about as many as wanted."""
    step = next(
        size * 10**power
        for power in range(12)
        for size in _STEPS
        if most / (size * 10**power) <= wanted
    )
    return list(range(0, int(most) + 1, step))


def _plot(samples: Sequence[Sample], survived: Sequence[Survived]) -> Iterator[str]:
    scale = Scale(max(samples[-1].at_s, 1.0), max([1, *(each.orders for each in samples)]))
    bottom = scale.y(0)
    for rows in ticks(scale.rows, 6):
        y = scale.y(rows)
        yield _line(PLOT_LEFT, y, WIDTH - MARGIN, y, LINE)
        yield _text(
            PLOT_LEFT - 8, y + 4, f"{rows:,}", size=11, fill=SOFT, extra='text-anchor="end"'
        )
    for seconds in ticks(scale.seconds, 14):
        x = scale.x(seconds)
        yield _text(
            x, bottom + 18, f"{seconds} s", size=11, fill=SOFT, extra='text-anchor="middle"'
        )
    committed = _curve(samples, scale, lambda sample: sample.committed)
    first, last = scale.x(samples[0].at_s), scale.x(samples[-1].at_s)
    yield f'<polygon points="{first},{bottom} {committed} {last},{bottom}" fill="{FILL}"/>'
    arrived = _curve(samples, scale, lambda sample: sample.orders)
    for points, colour, width in ((arrived, IN, 1.5), (committed, OUT, 2.2)):
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
    for number, event in enumerate(survived, 1):
        x = scale.x(event.at_s)
        yield _line(x, PLOT_TOP, x, bottom, BAD, 'stroke-width="1.2" stroke-dasharray="4 3"')
        yield from _badge(x, PLOT_TOP - 4, number)
    yield from _key()


def _curve(samples: Sequence[Sample], scale: Scale, of: Callable[[Sample], int]) -> str:
    """Points, without those in the middle of a level stretch."""
    places = [(scale.x(each.at_s), scale.y(of(each))) for each in samples]
    kept = [
        place
        for index, place in enumerate(places)
        if index in (0, len(places) - 1)
        or not places[index - 1][1] == place[1] == places[index + 1][1]
    ]
    return " ".join(f"{x},{y}" for x, y in kept)


def _key() -> Iterator[str]:
    x, y = float(MARGIN), PLOT_TOP - 28
    rows = (
        (IN, "orders that the broker has acknowledged"),
        (OUT, "rows and dead letters that readers of committed records see"),
    )
    for colour, words in rows:
        yield _line(x, y - 4, x + 22, y - 4, colour, 'stroke-width="3"')
        yield _text(x + 30, y, words, size=12, fill=SOFT)
        x += 300


def _badge(x: float, y: float, number: int) -> Iterator[str]:
    yield f'<circle cx="{x}" cy="{y - 5}" r="9" fill="{BAD}"/>'
    extra = 'text-anchor="middle" font-weight="700"'
    yield _text(x, y - 1, str(number), size=11, fill=PAPER, extra=extra)


def _legend(survived: Sequence[Survived], top: float) -> Iterator[str]:
    """What happened at each mark."""
    for number, event in enumerate(survived, 1):
        y = top + ROW * (number - 1)
        yield from _badge(MARGIN + 9, y, number)
        note = f" ({event.note})" if event.note else ""
        yield _text(MARGIN + 28, y, event.strike.words + note)
        again = f"committed again after {event.again_after_s:.1f} s"
        yield _text(WIDTH - MARGIN, y, again, fill=SOFT, extra='text-anchor="end"')
