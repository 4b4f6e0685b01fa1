"""The blocking client is closed by one thread while others are in it: whatever they have begun
ends, with its outcome or with an error that says why."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import uvloop

from onceflow.blocking import loop as loop_module
from onceflow.blocking.handover import Handover
from onceflow.blocking.loop import LoopThread, NotRunning, WouldWaitForever
from onceflow.blocking.twin import Twin, blocking

SECONDS = 30.0


async def one() -> int:
    return 1


class Outcome:
    """Of something that another thread does."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.found: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.found = self._work()
        except Exception as error:
            self.found = error

    def get(self) -> Any:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "a thread waits for a client that is closed"
        return self.found


@pytest.fixture
def loop() -> LoopThread:
    made = LoopThread("test")
    made.start()
    return made


def until_stopped(loop: LoopThread, also: Callable[[], None]) -> None:
    """Ends the loop's thread; `also` happens in its last turn."""

    def last_turn(inner: asyncio.AbstractEventLoop) -> None:
        also()
        inner.stop()

    life = loop._life
    assert life is not None
    life.loop.call_soon_threadsafe(last_turn, life.loop)
    life.thread.join(SECONDS)
    assert not life.thread.is_alive()


def test_a_call_that_was_only_queued_when_the_loop_ended(loop: LoopThread) -> None:
    life = loop._life
    assert life is not None
    waiting = loop_module.Waiting(life, one(), None)
    until_stopped(loop, waiting.ask)
    with pytest.raises((NotRunning, CancelledError), match="closed"):
        waiting.result(SECONDS)


def test_a_call_that_ended_in_the_last_turn_of_the_loop_has_its_outcome(loop: LoopThread) -> None:
    life = loop._life
    assert life is not None
    waiting = loop_module.Waiting(life, one(), None)
    turns = iter(range(3))

    def stop_after_its_end() -> None:
        """Its task ends in the turn after the one that begins it."""
        if next(turns) < 1:
            life.loop.call_soon(stop_after_its_end)
        else:
            life.loop.stop()

    def begin() -> None:
        waiting.ask()
        stop_after_its_end()

    life.loop.call_soon_threadsafe(begin)
    life.thread.join(SECONDS)
    assert not life.thread.is_alive()
    assert waiting.result(SECONDS) == 1


def test_a_call_that_comes_when_the_loop_has_ended(loop: LoopThread) -> None:
    life = loop._life
    assert life is not None
    late = loop_module.Waiting(life, one(), None)
    until_stopped(loop, lambda: None)
    late.ask()
    with pytest.raises(NotRunning, match="closed"):
        late.result(SECONDS)
    with pytest.raises(NotRunning, match="closed"):
        loop.run(one(), SECONDS)
    loop.stop()


def test_a_call_between_the_last_turn_and_the_close_of_the_loop(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked while the others are being let go is found, or sees that it is too late."""
    life = loop._life
    assert life is not None
    asked, come = threading.Event(), threading.Event()
    original = loop_module._end_tasks

    def end_tasks(inner: asyncio.AbstractEventLoop) -> None:
        original(inner)
        come.set()
        asked.wait(SECONDS)

    monkeypatch.setattr(loop_module, "_end_tasks", end_tasks)
    late = loop_module.Waiting(life, one(), None)
    stopped = Outcome(loop.stop)
    assert come.wait(SECONDS)
    late.ask()
    asked.set()
    with pytest.raises(NotRunning, match="closed"):
        late.result(SECONDS)
    assert stopped.get() is None


def test_a_call_that_waits_for_something_is_cancelled(loop: LoopThread) -> None:
    begun = threading.Event()

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    waiting = Outcome(lambda: loop.run(never()))
    assert begun.wait(SECONDS)
    loop.stop()
    found = waiting.get()
    assert isinstance(found, CancelledError)
    assert "closed" in str(found)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_has_crashed_lets_everybody_go(loop: LoopThread) -> None:
    life = loop._life
    assert life is not None
    begun = threading.Event()

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    waiting = Outcome(lambda: loop.run(never()))
    assert begun.wait(SECONDS)

    def crash() -> None:
        raise SystemExit

    life.loop.call_soon_threadsafe(crash)
    assert isinstance(waiting.get(), CancelledError)
    loop.stop()


def test_nobody_is_kept_who_has_an_answer(loop: LoopThread) -> None:
    life = loop._life
    assert life is not None
    for _ in range(10):
        assert loop.run(one()) == 1
    with pytest.raises(TimeoutError):
        loop.run(asyncio.sleep(SECONDS), 0.001)
    loop.run(one())
    loop.run(asyncio.sleep(0))
    assert not life.waiting
    loop.stop()


class Nothing:
    """A client that does nothing, and may take its time to close."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        self.closes = 0

    async def __aenter__(self) -> Nothing:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closes += 1
        self.closing.set()
        await asyncio.sleep(0.01)

    async def ping(self) -> int:
        return 1


class BlockingNothing(Twin[Nothing]):
    ping = blocking(Nothing.ping)


def test_threads_that_call_all_the_time_while_it_is_closed() -> None:
    """Without any order: what was lost before was lost in most of so many rounds."""
    for _ in range(20):
        made = BlockingNothing(Nothing())
        made.start()
        turns = [0] * 4

        def call(number: int, made: BlockingNothing = made, turns: list[int] = turns) -> None:
            while True:
                assert made.ping() == 1
                turns[number] += 1

        callers = [Outcome(partial(call, number)) for number in range(4)]
        while not all(turns):
            made.ping()
        made.close()
        for caller in callers:
            assert isinstance(caller.get(), NotRunning | CancelledError), caller.found


def test_two_threads_close_it_and_both_find_it_closed() -> None:
    for _ in range(20):
        client = Nothing()
        made = BlockingNothing(client)
        made.start()
        other = Outcome(made.close)
        assert client.closing.wait(SECONDS)
        made.close()
        assert other.get() is None
        with pytest.raises(NotRunning):
            made.ping()


def test_it_is_started_again_and_twice() -> None:
    client = Nothing()
    made = BlockingNothing(client)
    for _ in range(2):
        made.start()
        before = threading.active_count()
        made.start()
        assert threading.active_count() == before, "a second thread for one client"
        assert made.ping() == 1
        made.close()
    assert client.closes == 2


def test_a_close_that_is_late_does_not_end_the_next_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is not scheduled for a moment, and another one closes and starts the client."""
    made = BlockingNothing(Nothing())
    made.start()
    reached, goes_on = threading.Event(), threading.Event()
    real = loop_module.wait_for

    def wait_for(waiting: Any, timeout_s: float | None) -> Any:
        try:
            return real(waiting, timeout_s)
        finally:
            if threading.current_thread() is not threading.main_thread():
                reached.set()
                goes_on.wait(SECONDS)

    monkeypatch.setattr(loop_module, "wait_for", wait_for)
    other = Outcome(made.close)
    assert reached.wait(SECONDS)
    made.close()
    made.start()
    goes_on.set()
    assert other.get() is None
    assert made.ping() == 1
    made.close()


def test_threads_that_start_it_at_once_start_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = BlockingNothing(Nothing())
    real, both = uvloop.new_event_loop, threading.Barrier(2)

    def new_event_loop() -> Any:
        with suppress(threading.BrokenBarrierError):  # as only one of them comes here
            both.wait(0.2)
        return real()

    monkeypatch.setattr(uvloop, "new_event_loop", new_event_loop)
    before = threading.active_count()
    starters = [Outcome(made.start) for _ in range(2)]
    assert [each.get() for each in starters] == [None, None]
    assert threading.active_count() == before + 1
    assert made.ping() == 1
    made.close()
    assert threading.active_count() == before


def test_a_start_that_is_interrupted_at_once_leaves_nothing_that_others_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    made = BlockingNothing(Nothing())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.start()
    with pytest.raises(NotRunning):
        made.ping()
    made.start()
    assert made.ping() == 1
    made.close()


def test_a_close_on_its_own_thread_is_refused_and_changes_nothing() -> None:
    made = BlockingNothing(Nothing())
    made.start()
    with pytest.raises(WouldWaitForever):
        made._loop.call(made.close)
    assert made.ping() == 1
    made.close()


def test_a_second_stop_does_not_disturb_the_first_one(loop: LoopThread) -> None:
    """It may come while what is under way comes to its end."""
    ending, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(SECONDS)
        finally:
            ending.set()
            await asyncio.to_thread(may_end.wait, SECONDS)
            ended.set()

    life = loop.check()
    caller = Outcome(partial(loop.run, work()))
    first = Outcome(loop.stop)
    assert ending.wait(SECONDS)
    second = Outcome(partial(loop.stop, life=life))
    life.loop.call_soon_threadsafe(may_end.set)
    for each in (first, second, caller):
        each.get()
    assert ended.is_set()


def test_a_child_of_a_parent_that_polled_can_poll(loop: LoopThread) -> None:
    handover = Handover(loop, lambda found: None)
    assert handover._turn.acquire()  # by a thread that there is not in the child
    of_the_parent = loop.life
    loop._pid += 1
    with loop.starting():
        loop.start()
    assert handover.hand_out(rows) == ["row"]
    loop.stop()
    loop.stop(life=of_the_parent)


def test_a_child_starts_it_anew() -> None:
    made = BlockingNothing(Nothing())
    made.start()
    of_the_parent = made._loop.life
    made._loop._pid += 1  # as after a fork
    assert not made._loop.is_running
    made.close()  # that is the parent's to do
    made.start()
    assert made.ping() == 1
    made.close()
    made._loop.stop(life=of_the_parent)


async def rows() -> list[str]:
    return ["row"]


class _Slow(list[Any]):
    """Another thread goes on between a look at it and a change of it."""

    def __init__(self, calls: list[Any], meanwhile: Callable[[], None]) -> None:
        super().__init__(calls)
        self._meanwhile = meanwhile

    def clear(self) -> None:
        self._meanwhile()
        super().clear()

    def remove(self, call: Any) -> None:
        self._meanwhile()
        super().remove(call)


def test_a_call_that_begins_while_another_thread_settles_is_not_forgotten(
    loop: LoopThread,
) -> None:
    handover = Handover(loop, lambda _: None)
    handover.hand_out(rows)
    begun: list[object] = []

    def meanwhile() -> None:
        if not begun:
            begun.append(object())
            calls: list[Any] = handover._calls
            calls.append(begun[0])

    handover._calls = _Slow(handover._calls, meanwhile)
    assert handover._settling() is None
    assert handover._calls == begun
    loop.stop()


def test_calls_of_a_client_that_is_closed_are_not_kept(loop: LoopThread) -> None:
    handover = Handover(loop, lambda _: None)
    loop.stop()
    for _ in range(3):
        with pytest.raises(NotRunning):
            handover.hand_out(rows)
    assert handover._calls == []
