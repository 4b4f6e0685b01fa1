"""Kept figures: what a whole run of a bench found, committed beside the code that was measured.

`--keep` writes bench/kept/<name>.json: for each comparison the median of the rounds, the least and
the most, with commit, date, command and machine; no paths and no names of hosts. Later runs are
held against it. Speed is never an assert: what moved is told, and nothing fails because of it.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.common.report import Catalogue, Finding, Spread, number

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / "bench" / "kept"
PAGE: Final = ROOT / "docs" / "PERFORMANCE.md"
KEEP_ROUNDS: Final = 3
"""Fewer say nothing of the spread."""
MOVED: Final = 0.15
FACTS: Final = (
    "cores",
    "memory_bytes",
    "kernel",
    "architecture",
    "python",
    "java",
    "apache_kafka",
    "librdkafka",
    "busy_before",
)
"""What is kept of a machine."""
SAME_MACHINE: Final = ("cores", "kernel", "python")


class DirtyTree(RuntimeError):
    """What would be measured is in no commit."""


class Figure(NamedTuple):
    """One comparison, with all that is needed to show it."""

    metric: str
    title: str
    ours: str
    theirs: str
    """Empty where ours is compared with nobody."""
    pair: str
    """What the two are, in words."""
    unit: str
    decimals: int
    higher_is_better: bool
    median: float
    least: float
    most: float

    @property
    def key(self) -> tuple[str, str, str]:
        return self.metric, self.ours, self.theirs

    @property
    def spread(self) -> Spread:
        return Spread(self.median, self.least, self.most)


class Kept(NamedTuple):
    """One file of `bench/kept`."""

    name: str
    title: str
    commit: str
    date: str
    command: str
    rounds: int
    machine: Mapping[str, Any]
    figures: Sequence[Figure]


# --- written and read ---------------------------------------------------------------------------


def make_figure(catalogue: Catalogue, finding: Finding) -> Figure:
    comparison, metric = finding.comparison, finding.metric
    is_ratio = bool(comparison.theirs)
    return Figure(
        metric=comparison.metric,
        title=metric.title,
        ours=comparison.ours,
        theirs=comparison.theirs,
        pair=catalogue.pair_title(comparison),
        unit="x" if is_ratio else metric.unit,
        decimals=2 if is_ratio else metric.decimals,
        higher_is_better=metric.higher_is_better,
        **{name: float(f"{value:.4g}") for name, value in finding.spread._asdict().items()},
    )


def measured_commit(root: Path = ROOT) -> str:
    """Raises `DirtyTree` unless all that is measured is in it. What keeping itself writes may
    differ, so that several benches can be kept one after the other."""
    written = (f":(exclude){path.relative_to(ROOT)}" for path in (KEPT, PAGE))
    if changed := _git(root, "status", "--porcelain", "--", ".", *written):
        raise DirtyTree(f"figures are kept of a commit, and the work tree differs:\n{changed}")
    return _git(root, "rev-parse", "HEAD").strip()


def _git(root: Path, *command: str) -> str:
    return subprocess.run(
        ["git", *command], cwd=root, capture_output=True, text=True, check=True
    ).stdout


def make_kept(
    name: str,
    catalogue: Catalogue,
    findings: Iterable[Finding],
    facts: Mapping[str, Any],
    **run: Any,
) -> Kept:
    """`run` is the commit, the command and the number of rounds."""
    return Kept(
        name=name,
        title=catalogue.title,
        date=facts["date"],
        machine={fact: facts[fact] for fact in FACTS},
        figures=[make_figure(catalogue, finding) for finding in findings],
        **run,
    )


def write_kept(kept: Kept, folder: Path = KEPT) -> Path:
    folder.mkdir(exist_ok=True)
    target = folder / f"{kept.name}.json"
    figures = [figure._asdict() for figure in kept.figures]
    target.write_text(json.dumps({**kept._asdict(), "figures": figures}, indent=1) + "\n")
    return target


def read_kept(name: str, folder: Path = KEPT) -> Kept | None:
    source = folder / f"{name}.json"
    if not source.exists():
        return None
    fields = json.loads(source.read_text())
    return Kept(**{**fields, "figures": [Figure(**each) for each in fields["figures"]]})


def read_all_kept(folder: Path = KEPT) -> list[Kept]:
    """By name."""
    found = (read_kept(path.stem, folder) for path in sorted(folder.glob("*.json")))
    return [kept for kept in found if kept is not None]


# --- compared -----------------------------------------------------------------------------------


class Verdict(Enum):
    STEADY = "steady"
    BETTER = "better"
    WORSE = "WORSE"
    WITHIN_SPREAD = "within its spread"
    NEW = "new"
    MISSING = "not measured"


class Change(NamedTuple):
    """A figure that is kept, measured, or both."""

    figure: Figure
    verdict: Verdict
    kept: Spread | None
    now: Spread | None

    @property
    def move(self) -> float | None:
        """0.1 where it is a tenth more than was kept."""
        if self.kept is None or self.now is None:
            return None
        return _move(self.kept, self.now)


def _move(kept: Spread, now: Spread) -> float:
    return _share(now.median - kept.median, kept.median)


def _width(spread: Spread) -> float:
    return _share(spread.most - spread.least, spread.median)


def _share(part: float, whole: float) -> float:
    """Whatever is there of nothing is endless."""
    return part / whole if whole else math.copysign(math.inf, part) if part else 0.0


def judge(kept: Spread, now: Spread, higher_is_better: bool) -> Verdict:
    """What moves less than its rounds lie apart, in either run, has not been seen to move."""
    move = _move(kept, now)
    if abs(move) <= MOVED:
        return Verdict.STEADY
    if max(_width(kept), _width(now)) > abs(move):
        return Verdict.WITHIN_SPREAD
    return Verdict.BETTER if (move > 0) is higher_is_better else Verdict.WORSE


def find_changes(kept: Iterable[Figure], now: Iterable[Figure]) -> list[Change]:
    """All figures: in the order of the run, and behind them what it did not measure."""
    before = {figure.key: figure for figure in kept}
    changes = []
    for figure in now:
        old = before.pop(figure.key, None)
        if old is None:
            changes.append(Change(figure, Verdict.NEW, None, figure.spread))
        else:
            verdict = judge(old.spread, figure.spread, figure.higher_is_better)
            changes.append(Change(figure, verdict, old.spread, figure.spread))
    missing = (Change(old, Verdict.MISSING, old.spread, None) for old in before.values())
    return [*changes, *missing]


# --- shown --------------------------------------------------------------------------------------

STYLES: Final = {Verdict.BETTER: "green", Verdict.WORSE: "bold red", Verdict.NEW: "cyan"}


def show_changes(console: Console, kept: Kept, changes: Sequence[Change]) -> None:
    """All that is not where it was, and how many are."""
    moved = [change for change in changes if change.verdict is not Verdict.STEADY]
    console.print(
        f"{len(changes) - len(moved)} of {len(changes)} figures are within {MOVED:.0%} of the kept "
        f"ones (commit {kept.commit[:12]}, {kept.date[:10]}){': the rest' if moved else ''}.",
        highlight=False,
    )
    for pair, group in groupby(moved, lambda change: change.figure.pair):
        table = Table(title=pair, title_justify="left")
        table.add_column("measure")
        for column in ("kept", "now", "move"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for change in group:
            table.add_row(*change_row(change))
        console.print(table)


def change_row(change: Change) -> tuple[str, str, str, str, str]:
    """Medians only: the ranges of this run have been shown, and those of the kept one judged."""
    kept, now = (in_words(change.figure, spread) for spread in (change.kept, change.now))
    move = "" if change.move is None else f"{change.move:+.0%}"
    style = STYLES.get(change.verdict, "dim")
    return change.figure.title, kept, now, move, f"[{style}]{change.verdict.value}[/]"


def in_words(figure: Figure, spread: Spread | None) -> str:
    return f"{number(spread.median, figure.decimals)}{unit_of(figure)}" if spread else ""


def unit_of(figure: Figure) -> str:
    """As it stands behind a number."""
    return "x" if figure.unit == "x" else f" {figure.unit}".rstrip()


def other_machine(kept: Kept, facts: Mapping[str, Any]) -> str:
    """What differs so that figures may; empty where nothing does."""
    return ", ".join(
        f"{fact} {kept.machine[fact]} then and {facts[fact]} now"
        for fact in SAME_MACHINE
        if kept.machine[fact] != facts[fact]
    )
