"""Kept figures of speed: what has moved and what has not, and what the page says of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.common.figures import (
    DirtyTree,
    Figure,
    Kept,
    Verdict,
    find_changes,
    judge,
    measured_commit,
    read_all_kept,
    read_kept,
    write_kept,
)
from bench.common.report import Spread
from bench.write_docs import render

STEADY_BEFORE = Spread(2.0, 1.95, 2.05)


def figure(metric: str, median: float, *, ours: str = "ours-os", higher: bool = True) -> Figure:
    return Figure(
        metric=metric,
        title=metric.title(),
        ours=ours,
        theirs="kafka",
        pair=f"{ours} against kafka",
        unit="x",
        decimals=2,
        higher_is_better=higher,
        median=median,
        least=median * 0.98,
        most=median * 1.02,
    )


def kept(name: str, *figures: Figure) -> Kept:
    machine = {
        "cores": 2,
        "memory_bytes": 8 << 30,
        "kernel": "6.1",
        "architecture": "x86_64",
        "python": "3.11.2",
        "java": "openjdk",
        "apache_kafka": "4.3.1",
        "librdkafka": "2.16.0",
        "busy_before": 0.02,
    }
    return Kept(
        name, name.title(), "0" * 40, "2026-01-02T03:04:05", "python", 3, machine, list(figures)
    )


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (Spread(2.0, 2.0, 2.0), Verdict.STEADY),
        (Spread(2.25, 2.25, 2.25), Verdict.STEADY),
        (Spread(1.75, 1.75, 1.75), Verdict.STEADY),
        (Spread(2.4, 2.4, 2.4), Verdict.BETTER),
        (Spread(1.6, 1.6, 1.6), Verdict.WORSE),
        (Spread(2.4, 2.2, 2.8), Verdict.WITHIN_SPREAD),
        (Spread(1.6, 1.5, 2.1), Verdict.WITHIN_SPREAD),
        # It moved by far more than its rounds lie apart.
        (Spread(1.0, 0.9, 1.2), Verdict.WORSE),
    ],
)
def test_a_figure_has_moved_when_neither_15_percent_nor_its_spread_explain_it(
    now: Spread, verdict: Verdict
) -> None:
    assert judge(STEADY_BEFORE, now, higher_is_better=True) is verdict


def test_the_spread_of_the_kept_figure_counts_as_well() -> None:
    single = Spread(2.4, 2.4, 2.4)
    assert judge(Spread(2.0, 1.7, 2.3), single, higher_is_better=True) is Verdict.WITHIN_SPREAD


def test_of_a_cost_less_is_better() -> None:
    half, twice = Spread(1.0, 1.0, 1.0), Spread(4.0, 4.0, 4.0)
    assert judge(STEADY_BEFORE, half, higher_is_better=False) is Verdict.BETTER
    assert judge(STEADY_BEFORE, twice, higher_is_better=False) is Verdict.WORSE


def test_nothing_can_be_compared_with_nothing() -> None:
    nothing = Spread(0.0, 0.0, 0.0)
    assert judge(nothing, nothing, higher_is_better=False) is Verdict.STEADY
    assert judge(nothing, STEADY_BEFORE, higher_is_better=False) is Verdict.WORSE


def test_what_is_new_and_what_was_not_measured_is_told() -> None:
    changes = find_changes(
        [figure("gone", 1.0), figure("stays", 1.0)], [figure("comes", 3.0), figure("stays", 1.5)]
    )
    assert [(each.figure.metric, each.verdict) for each in changes] == [
        ("comes", Verdict.NEW),
        ("stays", Verdict.BETTER),
        ("gone", Verdict.MISSING),
    ]
    assert [each.move for each in changes] == [None, pytest.approx(0.5), None]


def test_the_same_metric_of_other_brokers_is_another_figure() -> None:
    (new, missing) = find_changes(
        [figure("one", 1.0, ours="ours-fsync")], [figure("one", 9.0, ours="ours-os")]
    )
    assert (new.verdict, missing.verdict) == (Verdict.NEW, Verdict.MISSING)


def test_kept_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    whole = kept("headlines", figure("one", 1.25), figure("two", 0.5, higher=False))
    write_kept(whole, tmp_path / "kept")
    assert read_kept("headlines", tmp_path / "kept") == whole
    assert read_kept("broker", tmp_path / "kept") is None
    assert read_all_kept(tmp_path / "kept") == [whole]


def test_the_page_names_commit_and_date_of_every_bench_and_begins_with_the_headlines() -> None:
    page = render([kept("broker", figure("one", 1.25)), kept("headlines", figure("two", 0.5))])
    assert page.index("## Headlines") < page.index("## Broker") < page.index("## The longer")
    assert page.count("Commit 000000000000, 2026-01-02") == 2
    assert "| One | 1.25x | 1.23 to 1.27 | more |" in page
    assert "No figures" not in page


def test_the_page_says_so_when_nothing_is_kept() -> None:
    assert "No figures are kept yet" in render([])


def test_figures_are_kept_of_a_commit_only(tmp_path: Path) -> None:
    """A file that nobody has committed may be code as well."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "code.py").write_text("changed = True\n")
    with pytest.raises(DirtyTree, match=r"code\.py"):
        measured_commit(tmp_path)
