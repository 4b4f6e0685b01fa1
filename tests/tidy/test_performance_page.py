"""docs/PERFORMANCE.md says what the kept figures say, whether any are kept or none."""

from __future__ import annotations

import re

from bench.common.figures import KEEP_ROUNDS, PAGE, read_all_kept
from bench.write_docs import BENCHES, MEASUREMENTS, render

ALL_KEPT = read_all_kept()


def test_the_page_is_what_the_kept_figures_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(ALL_KEPT), "run python -m bench.write_docs"


def test_each_bench_has_a_section_of_measurements() -> None:
    headings = re.findall("^## (bench.+)$", (PAGE.parent / MEASUREMENTS).read_text(), re.MULTILINE)
    assert headings == [bench.name for bench in BENCHES]


def test_kept_figures_say_of_what_they_are() -> None:
    for kept in ALL_KEPT:
        assert re.fullmatch("[0-9a-f]{40}", kept.commit)
        assert kept.rounds >= KEEP_ROUNDS
        assert kept.figures
