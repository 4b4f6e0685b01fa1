"""Groups of one, two and five members of each client: they join, share, commit and leave."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.interop.broker.clients.face import Client, Message, Place, Reader, Received
from tests.interop.broker.clients.scripts import CLIENTS, ClientScript, ready_topic, with_client
from tests.interop.harness import Compare, DidNotSettle, Names, Transcript, eventually

pytestmark = [
    pytest.mark.interop,
    # kafka-python leaves sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

PARTITIONS = 10


class Member:
    """A member that polls in a thread of its own, as consumers do, until it is stopped."""

    def __init__(self, join: Callable[[], Reader]) -> None:
        self.received: list[Received] = []
        self.assignment: frozenset[Place] = frozenset()
        self.problem: BaseException | None = None
        self._join = join
        self._stopped = threading.Event()
        self._to_commit = threading.Event()
        self._committed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            reader = self._join()
            while not self._stopped.is_set():
                self.received += reader.poll(0.05)
                self.assignment = reader.assignment()
                if self._to_commit.is_set() and not self._committed.is_set():
                    reader.commit(self._positions(reader))
                    self._committed.set()
            reader.close()
        except BaseException as problem:
            self.problem = problem

    def _positions(self, reader: Reader) -> dict[Place, int]:
        """Behind the last record of each partition that it has."""
        topics = {partition: topic for topic, partition in reader.assignment()}
        return {
            (topics[record.partition], record.partition): record.offset + 1
            for record in self.received
            if record.partition in topics
        }

    def commit(self) -> None:
        """Commits behind all that it received."""
        self._to_commit.set()
        assert self._committed.wait(30), self.problem

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.problem:
            raise self.problem


def shares(members: list[Member]) -> list[int] | None:
    """How many partitions each member has; None while not each one is with exactly one."""
    for member in members:
        if member.problem:
            raise member.problem
    held = Counter(place for member in members for place in member.assignment)
    if len(held) == PARTITIONS and set(held.values()) == {1}:
        return sorted(len(member.assignment) for member in members)
    return None


def settle(members: list[Member]) -> list[int]:
    """The shares, once every partition is held and every member holds some."""
    try:
        found = eventually(lambda: shares(members), lambda held: held is not None and min(held) > 0)
    except DidNotSettle as error:
        for number, member in enumerate(members):
            error.add_note(f"member {number} holds {sorted(member.assignment)}")
        raise
    assert found is not None
    return found


def come_and_go(client: Client, names: Names, transcript: Transcript) -> None:
    """One, two, five, three members; each record then reaches one member, and its offset stays."""
    strategy = client.strategies[0]
    topic, group = ready_topic(names, partitions=PARTITIONS), names("group")

    def join() -> Member:
        return Member(lambda: client.join(group, topic, strategy=strategy))

    members = [join()]
    transcript.note("one", settle(members))
    members.append(join())
    transcript.note("two", settle(members))
    members += [join() for _ in range(3)]
    transcript.note("five", settle(members))
    transcript.note("state of five", client.group_state(group))
    for _ in range(2):
        members.pop(0).stop()
    transcript.note("three", settle(members))
    rows = [Message(b"%d" % number, partition=number % PARTITIONS) for number in range(50)]
    client.produce(topic, rows)
    eventually(
        lambda: sum(len(member.received) for member in members), lambda count: count >= len(rows)
    )
    got = Counter(record.value for member in members for record in member.received)
    assert got == Counter(row.value for row in rows)
    for member in members:
        member.commit()
    assert client.group_offsets(group) == {(topic, number): 5 for number in range(PARTITIONS)}
    for member in members:
        member.stop()
    transcript.note("state at the end", client.group_state(group))
    assert group in client.groups()


def other_strategies(client: Client, names: Names, transcript: Transcript) -> None:
    """Cooperative and sticky members share too, two and then one."""
    for strategy in client.strategies[1:]:
        topic = ready_topic(names, strategy, partitions=PARTITIONS)
        join = partial(client.join, names(f"{strategy}-group"), topic, strategy=strategy)
        members = [Member(join)]
        settle(members)
        members.append(Member(join))
        transcript.note(f"{strategy}: two", settle(members))
        members.pop(0).stop()
        transcript.note(f"{strategy}: one", settle(members))
        members.pop().stop()


def committed_offsets(client: Client, names: Names, transcript: Transcript) -> None:
    """A member goes on where another one of its group left off."""
    topic, group = ready_topic(names, partitions=PARTITIONS), names("group")
    client.produce(topic, [Message(b"%d" % number) for number in range(10)])
    first = client.join(group, topic)
    received: list[Received] = []

    def read_some() -> int:
        received.extend(first.poll(0.1))
        return len(received)

    eventually(read_some, lambda count: count >= 10)
    transcript.note("none yet", first.committed((topic, 0)))
    first.commit({(topic, 0): 7})
    transcript.note("committed", first.committed((topic, 0)))
    first.close()
    assert client.group_offsets(group) == {(topic, 0): 7}
    second = client.join(group, topic)
    again: list[Received] = []

    def read_more() -> int:
        again.extend(second.poll(0.1))
        return len(again)

    eventually(read_more, lambda count: count >= 3)
    second.close()
    assert [record.offset for record in again] == [7, 8, 9]
    transcript.note("offsets", client.group_offsets(group))
    transcript.note("state", client.group_state(group))


def static_members(client: Client, names: Names, transcript: Transcript) -> None:
    """An instance that comes back within its session has its partitions again."""
    topic, group = ready_topic(names, partitions=PARTITIONS), names("group")
    members = [Member(lambda: client.join(group, topic, instance="one"))]
    settle(members)
    members.append(Member(lambda: client.join(group, topic, instance="two")))
    transcript.note("two", settle(members))
    held = members[1].assignment
    members.pop().stop()
    transcript.note("while it is away", client.group_state(group))
    members.append(Member(lambda: client.join(group, topic, instance="two")))
    transcript.note("back", settle(members))
    transcript.note("the same share", members[1].assignment == held)
    for member in members:
        member.stop()


SCRIPTS: tuple[ClientScript, ...] = (
    come_and_go,
    other_strategies,
    committed_offsets,
    static_members,
)


@pytest.mark.parametrize("make", CLIENTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_groups(make: type[Client], script: ClientScript, compare: Compare) -> None:
    compare(with_client(make, script))
