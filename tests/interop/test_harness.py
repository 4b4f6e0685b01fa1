"""The comparison itself: it sees differences, lets pass what is listed, and lists no ghosts."""

from __future__ import annotations

import pytest

from tests.interop.harness import (
    DidNotSettle,
    KnownDifference,
    Line,
    Names,
    Transcript,
    differences,
    eventually,
    run,
)

THEIRS: list[Line] = [("ask", {"error": "NONE", "rows": [1, 2]}), ("end", 7)]
OURS: list[Line] = [("ask", {"error": "NONE", "rows": [1, 3]}), ("end", 7)]
LISTED = KnownDifference("script", "ask rows *", 2, 3, "a reason")


def test_equal_transcripts_have_no_difference() -> None:
    assert differences("script", THEIRS, THEIRS, ()) == []


def test_a_difference_is_named_by_its_place_and_both_values() -> None:
    (told,) = differences("script", THEIRS, OURS, ())
    assert told == "ask rows 1: Apache Kafka 2, ours 3"


def test_other_shapes_and_other_steps_are_differences() -> None:
    shorter: list[Line] = [("ask", {"error": "NONE", "rows": [1]}), ("end", 7)]
    assert len(differences("script", THEIRS, shorter, ())) == 1
    assert "not the same steps" in differences("script", THEIRS, OURS[:1], ())[0]


def test_what_is_listed_passes_with_these_values_and_in_this_script_only() -> None:
    assert differences("script", THEIRS, OURS, (LISTED,)) == []
    assert len(differences("other", THEIRS, OURS, (LISTED,))) == 1
    other_value = KnownDifference("script", "ask rows *", 2, 4, "a reason")
    assert len(differences("script", THEIRS, OURS, (other_value,))) == 2


def test_an_entry_that_is_no_longer_true_is_told() -> None:
    (told,) = differences("script", THEIRS, THEIRS, (LISTED,))
    assert "does not" in told


def test_what_is_new_in_each_run_is_hidden() -> None:
    def script(bootstrap: str, names: Names, transcript: Transcript) -> None:
        member = "member-123e4567-e89b-12d3-a456-426614174000"
        transcript.note("names", {names("topic"): [f"at {bootstrap}", member]})

    first, second = run(script, "127.0.0.1:9092"), run(script, "127.0.0.1:19092")
    assert first == second == [("names", {"topic": ["at <broker>", "member-<uuid>"]})]


def test_a_script_that_notes_nothing_fails() -> None:
    with pytest.raises(AssertionError, match="compares nothing"):
        run(lambda bootstrap, names, transcript: None, "127.0.0.1:9092")


def test_waiting_ends_with_the_last_answer() -> None:
    with pytest.raises(DidNotSettle, match="still 3"):
        eventually(lambda: 3, lambda answer: answer > 3, seconds=0)
