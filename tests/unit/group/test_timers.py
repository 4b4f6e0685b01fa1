"""Timers by name: they fire once, at their last deadline, and never when they were cancelled."""

from __future__ import annotations

from collections.abc import Callable

from onceflow.group.offsets_log import Writes
from onceflow.group.timers import Timers


class Later:
    """A clock, and the calls that were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, Callable[[], None], list[bool]]] = []

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        raise AssertionError("nothing that waits may look at the wall")

    wall_ns = wall_ms

    def call_later(self, delay: float, callback: Callable[[], None]) -> Later.Handle:
        cancelled: list[bool] = []
        self.calls.append((self.now + delay, callback, cancelled))
        return Later.Handle(cancelled)

    class Handle:
        def __init__(self, cancelled: list[bool]) -> None:
            self.cancelled = cancelled

        def cancel(self) -> None:
            self.cancelled.append(True)

    def go_to(self, now: float) -> None:
        self.now = now
        due = [call for call in self.calls if call[0] <= now]
        self.calls = [call for call in self.calls if call[0] > now]
        for _, callback, cancelled in due:
            if not cancelled:
                callback()


def make() -> tuple[Later, Timers[str], list[str]]:
    later, fired = Later(), list[str]()
    return later, Timers(later, later.call_later, fired.append), fired


def test_a_timer_that_is_set_anew_fires_once_at_its_last_deadline() -> None:
    later, timers, fired = make()
    timers.set("a", 10)
    for now in range(1, 9):
        later.go_to(now)
        timers.set("a", 10)
    assert len(later.calls) == 1  # A heartbeat asks for no call of its own.
    later.go_to(17.9)
    assert fired == []
    later.go_to(18)
    later.go_to(100)
    assert fired == ["a"]


def test_a_timer_can_be_brought_forward() -> None:
    later, timers, fired = make()
    timers.set("a", 300)
    timers.set("a", 10)
    later.go_to(10)
    assert fired == ["a"]
    later.go_to(300)
    assert fired == ["a"]


def test_a_cancelled_timer_does_not_fire() -> None:
    later, timers, fired = make()
    for name in "abc":
        timers.set(name, 1)
    timers.cancel("a")
    timers.cancel("a")
    later.go_to(0.5)
    timers.cancel("b")
    timers.set("b", 5)
    later.go_to(2)
    assert fired == ["c"]
    timers.cancel_all()
    later.go_to(10)
    assert fired == ["c"]


def test_who_waits_for_writes_waits_for_those_that_have_begun_there() -> None:
    writes, seen = Writes(), list[str]()
    writes.when_settled([1], lambda: seen.append("nothing to wait for"))
    first, elsewhere, second = writes.begin(1), writes.begin(2), writes.begin(1)
    writes.when_settled([1], lambda: seen.append("one"))
    writes.when_settled([1, 2], lambda: seen.append("both"))
    late = writes.begin(1)
    writes.end(second)
    assert seen == ["nothing to wait for"]
    writes.end(first)
    assert seen == ["nothing to wait for", "one"]
    writes.end(elsewhere)
    assert seen == ["nothing to wait for", "one", "both"]
    writes.end(late)
    assert len(seen) == 3
