"""Rules across settings: which of them are broken."""

from __future__ import annotations

import pytest

from onceflow.settings.rules import Rule, broken_rules, contradiction, first_is_larger

RULE = Rule("least", "most", first_is_larger, "make least smaller")


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({"least": 2, "most": 1}, 1),
        ({"least": 1, "most": 1}, 0),
        ({"least": 2}, 0),
        ({"most": 0}, 0),
    ],
)
def test_a_rule_needs_both_of_its_settings(values: dict[str, int], count: int) -> None:
    assert len(list(broken_rules([RULE], values))) == count


def test_a_contradiction_names_both_and_says_what_to_do() -> None:
    assert contradiction("a = 1", "b = 2", "leave b out") == "a = 1 contradicts b = 2: leave b out"
