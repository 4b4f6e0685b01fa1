"""Room for large requests: who gets it, in which order, and who loses it."""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onceflow.broker.net.memory import LOOK_SECONDS, RequestMemory
from tests.doses import examples

MB = 1 << 20
SECONDS = 30.0
PATIENCE = 4
"""Looks at one who does not send, until it has to go."""


class Sender:
    """A connection that does what the test says."""

    def __init__(self, size: int = MB) -> None:
        self.size = size
        self.received_bytes = 0
        self.has_room = False
        self.closed = ""

    def go_on(self) -> None:
        assert not self.has_room
        self.has_room = True

    def close(self, reason: str) -> None:
        self.closed = reason


class Room:
    """A memory, and a clock that goes on with every look."""

    def __init__(self, total: int) -> None:
        self.crowded = 0
        self.now = 0.0
        self.memory = RequestMemory(total, SECONDS, self._on_crowded)

    def _on_crowded(self) -> None:
        self.crowded += 1

    def ask(self, sender: Sender) -> bool:
        sender.has_room = self.memory.ask(sender, sender.size, self.now)
        return sender.has_room

    def look(self) -> list[Sender]:
        self.now += LOOK_SECONDS
        gone = []
        for sender, reason in self.memory.look(self.now):
            sender.close(reason)
            assert isinstance(sender, Sender)
            gone.append(sender)
        for each in gone:
            self.memory.leave(each)
        return gone


def test_who_finds_room_goes_on_at_once_and_nobody_is_looked_at() -> None:
    room = Room(8 * MB)
    senders = [Sender() for _ in range(4)]
    assert all(room.ask(each) for each in senders)
    assert not room.memory.is_crowded
    for _ in range(100):
        assert not room.look(), "nobody waits: whoever is slow harms nobody"


def test_room_that_becomes_free_goes_to_the_newest_and_the_oldest_in_turn() -> None:
    room = Room(2 * MB)
    holder, *waiting = [Sender() for _ in range(6)]
    assert room.ask(holder)
    assert not any(room.ask(each) for each in waiting)
    assert room.crowded == 1
    order = []
    for _ in range(5):
        room.memory.leave(holder)
        (holder,) = [each for each in waiting if each.has_room and each not in order]
        order.append(holder)
    assert [waiting.index(each) for each in order] == [4, 0, 3, 1, 2]
    assert not room.memory.is_crowded
    assert not room.ask(Sender())
    assert room.crowded == 2


def test_the_largest_do_not_stand_in_the_way_of_the_usual_ones_nor_they_in_theirs() -> None:
    room = Room(64 * MB)
    assert [room.ask(Sender(16 * MB)) for _ in range(4)] == [True, True, False, False]
    usual = [room.ask(Sender()) for _ in range(40)]
    assert usual == [True] * 32 + [False] * 8
    other = Room(64 * MB)
    assert [other.ask(Sender()) for _ in range(40)] == usual
    assert other.ask(Sender(16 * MB))


def test_one_that_is_larger_than_all_there_is_goes_alone() -> None:
    room = Room(8 * MB)
    small, huge, later = Sender(2 * MB), Sender(16 * MB), Sender(2 * MB)
    assert room.ask(small)
    assert not room.ask(huge)
    assert not room.ask(later), "else it would never be the turn of the large one"
    room.memory.leave(later)
    room.memory.leave(small)
    assert huge.has_room
    assert not room.ask(small)
    room.memory.leave(huge)
    assert small.has_room


def test_a_holder_that_does_not_send_has_to_go_when_others_wait() -> None:
    room = Room(4 * MB)
    stopped, sends, waits = Sender(), Sender(), Sender()
    assert room.ask(stopped)
    assert room.ask(sends)
    assert not room.ask(waits)
    for look in range(1, PATIENCE + 1):
        sends.received_bytes += 100_000
        assert room.look() == ([stopped] if look == PATIENCE else [])
    assert waits.has_room
    assert stopped.closed == f"0 of {MB} bytes of a request, and others wait for room"
    assert not sends.closed


def test_there_is_less_patience_when_more_is_waited_for_than_there_is() -> None:
    room = Room(4 * MB)
    stopped = [Sender(), Sender()]
    waits = [Sender() for _ in range(3)]
    assert [room.ask(each) for each in (*stopped, *waits)] == [True, True, False, False, False]
    assert not room.look()
    assert room.look() == stopped
    assert sum(each.has_room for each in waits) == 2


def test_a_pace_that_would_never_do_is_none() -> None:
    room = Room(4 * MB)
    trickles, just_enough, waits = Sender(), Sender(), Sender()
    for each in (trickles, just_enough, waits):
        room.ask(each)
    enough = int(MB * LOOK_SECONDS / SECONDS) + 1
    for _ in range(PATIENCE):
        trickles.received_bytes += enough // 2
        just_enough.received_bytes += enough
        room.look()
    assert trickles.closed
    assert not just_enough.closed


def test_a_pause_is_forgiven() -> None:
    """And with it a loop that was busy elsewhere and saw nothing of what came."""
    room = Room(2 * MB)
    holder, waits = Sender(), Sender()
    room.ask(holder)
    room.ask(waits)
    for look in range(40):
        if look % PATIENCE == PATIENCE - 1:
            holder.received_bytes += 50_000
        assert not room.look()


def test_what_had_come_before_there_was_room_is_no_progress() -> None:
    room = Room(2 * MB)
    holder, stopped, waits = Sender(), Sender(), Sender()
    stopped.received_bytes = 500_000
    for each in (holder, stopped, waits):
        room.ask(each)
    room.memory.leave(waits)
    room.memory.leave(holder)
    assert stopped.has_room
    assert not room.ask(waits)
    for _ in range(PATIENCE):
        room.look()
    assert stopped.closed


def test_no_more_have_to_go_than_others_need_room_for() -> None:
    room = Room(20 * MB)
    first, *stopped = [Sender() for _ in range(10)]
    assert all(room.ask(each) for each in (first, *stopped))
    waits = Sender()
    assert not room.ask(waits)
    assert sum(len(room.look()) for _ in range(PATIENCE)) == 1
    assert waits.has_room
    assert first.closed
    assert not any(each.closed for each in stopped)


def test_who_waits_too_long_is_let_go() -> None:
    room = Room(2 * MB)
    holder, waits, later = Sender(), Sender(), Sender()
    room.ask(holder)
    room.ask(waits)
    room.now += 10
    room.ask(later)
    for _ in range(int(25 / LOOK_SECONDS)):
        holder.received_bytes += 20_000
        room.look()
    assert waits.closed == f"no room for its request of {MB} bytes in 30 s"
    assert not later.closed
    assert not holder.closed


class Walk(RuleBasedStateMachine):
    """Any order of coming, sending, looking and leaving."""

    total = 8 * MB

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(self.total)
        self.senders: list[Sender] = []

    @rule(size=st.integers(1, 12 * MB))
    def come(self, size: int) -> None:
        sender = Sender(size)
        self.room.ask(sender)
        self.senders.append(sender)

    @precondition(lambda self: self.senders)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from(self.senders))
        self.senders.remove(sender)
        self.room.memory.leave(sender)
        self.room.memory.leave(sender)

    @precondition(lambda self: self.senders)
    @rule(data=st.data(), size=st.integers(1, MB))
    def send(self, data: st.DataObject, size: int) -> None:
        sender = data.draw(st.sampled_from(self.senders))
        if sender.has_room:
            sender.received_bytes += size

    @rule(times=st.integers(1, 2 * PATIENCE))
    def look(self, times: int) -> None:
        for _ in range(times):
            for sender in self.room.look():
                self.senders.remove(sender)

    @invariant()
    def no_more_is_given_than_there_is(self) -> None:
        for is_usual in (True, False):
            held = [
                each.size
                for each in self.senders
                if each.has_room and (each.size <= 5 << 18) is is_usual
            ]
            assert len(held) <= 1 or sum(held) <= self.total // 2

    @invariant()
    def somebody_is_always_served(self) -> None:
        waiting = [each for each in self.senders if not each.has_room]
        assert self.room.memory.is_crowded == bool(waiting)
        for each in waiting:
            is_usual = each.size <= 5 << 18
            assert any(
                other.has_room and (other.size <= 5 << 18) is is_usual for other in self.senders
            )

    def teardown(self) -> None:
        """Those who stop sending are gone in the end, and nobody waits."""
        waiting = len([each for each in self.senders if not each.has_room])
        for _ in range((waiting + 1) * (PATIENCE + 1)):
            if not self.room.memory.is_crowded:
                return
            self.look(1)
        raise AssertionError("somebody waits though nobody sends")


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
