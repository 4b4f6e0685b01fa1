"""Long work in turns of the loop: each does a little, and none is another's trouble."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from onceflow.broker.requests.slices import Slices
from onceflow.errors import DiskFull, InvariantViolated, LogCorrupt


class Call:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Turns:
    """A loop that goes on when told to."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.done: list[str] = []
        self.reported: list[tuple[str, Exception]] = []
        self.slices = Slices(self.call_later, lambda *error: self.reported.append(error))

    def call_later(self, delay: float, callback: Callable[[], None]) -> Call:
        assert delay == 0
        self.calls.append(Call(callback))
        return self.calls[-1]

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            if not call.is_cancelled:
                call.callback()

    def work(self, name: str, count: int, error: Exception | None = None) -> Iterator[None]:
        for number in range(count):
            self.done.append(f"{name}{number}")
            yield
        if error is not None:
            raise error


def test_a_turn_is_a_slice_and_works_take_turns() -> None:
    turns = Turns()
    turns.slices.run("a", turns.work("a", 3))
    turns.slices.run("b", turns.work("b", 1))
    assert turns.done == [], "nothing happens at once"
    for expected in (["a0"], ["a0", "b0"], ["a0", "b0", "a1"]):
        turns.turn()
        assert turns.done == expected
    for _ in range(4):
        turns.turn()
    assert turns.done == ["a0", "b0", "a1", "a2"]
    assert not turns.calls, "nobody asks for a turn when there is nothing to do"


def test_work_that_is_not_done_is_not_begun_again() -> None:
    turns = Turns()
    turns.slices.run("a", turns.work("first", 2))
    turns.turn()
    turns.slices.run("a", turns.work("second", 2))
    for _ in range(3):
        turns.turn()
    assert turns.done == ["first0", "first1"]
    turns.slices.run("a", turns.work("third", 1))
    turns.turn()
    assert turns.done[-1] == "third0"


@pytest.mark.parametrize(
    "error", [DiskFull("no room"), KeyError("x"), LogCorrupt("x"), InvariantViolated("x")]
)
def test_an_error_ends_its_own_work_and_is_told(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    turns = Turns()
    turns.slices.run("forgetting", turns.work("a", 1, error))
    turns.slices.run("b", turns.work("b", 2))
    for _ in range(6):
        turns.turn()
    assert turns.done == ["a0", "b0", "b1"]
    is_expected = isinstance(error, DiskFull)
    assert ("forgetting failed: no room" in caplog.text) == is_expected
    assert turns.reported == ([] if is_expected else [("forgetting", error)])
    turns.slices.run("forgetting", turns.work("again", 1))
    turns.turn()
    assert turns.done[-1] == "again0"


def test_nothing_happens_after_the_end() -> None:
    turns = Turns()
    turns.slices.run("a", turns.work("a", 3))
    turns.turn()
    turns.slices.close()
    turns.slices.run("b", turns.work("b", 1))
    turns.turn()
    assert turns.done == ["a0"]
