"""docs/PERFORMANCE.md says what the kept figures say, whether any are kept or none."""

from __future__ import annotations

import re

import pytest

from bench.common.figures import KEEP_ROUNDS, PAGE, read_all_kept
from bench.write_docs import BENCHES, Bench, render

ALL_KEPT = read_all_kept()


def test_the_page_is_what_the_kept_figures_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(ALL_KEPT), "run python -m bench.write_docs"


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.command)
def test_the_page_links_to_pages_that_are_there(bench: Bench) -> None:
    assert (PAGE.parent / bench.page).exists()


def test_kept_figures_say_of_what_they_are() -> None:
    for kept in ALL_KEPT:
        assert re.fullmatch("[0-9a-f]{40}", kept.commit)
        assert kept.rounds >= KEEP_ROUNDS
        assert kept.figures
