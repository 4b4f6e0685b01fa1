"""A node is killed while our client writes: what was acknowledged and committed is there once, in
order and whole, whatever was in flight; and nothing hangs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

import pytest

from tests.doses import some_long
from tests.interop.client.cluster.kills import kill_at, wait
from tests.interop.client.cluster.loads import (
    IMPATIENT,
    Driven,
    End,
    Follower,
    Load,
    Stream,
    Transactions,
)
from tests.interop.client.cluster.strike import Moment
from tests.interop.client.cluster.three_nodes import until_whole
from tests.interop.harness import Names
from tools.apache_kafka import ApacheKafkaCluster

pytestmark = pytest.mark.interop


class Case(NamedTuple):
    """Who is killed, when, and what goes on meanwhile."""

    make: Callable[[Names], Load]
    moment: Moment
    frozen: bool = False


CASES: Final = {
    "leader-stream": Case(Stream, Moment.SENDING),
    "end-unanswered": Case(
        lambda names: Transactions(names, "transactions", 2, IMPATIENT),
        Moment.COMMITTING,
        frozen=True,
    ),
    "offsets-workers": Case(lambda names: Driven(names, "driven", 2), Moment.OFFSETS),
    "end-workers-older": Case(lambda names: Driven(names, "driven", 1), Moment.COMMITTING),
}


@pytest.mark.parametrize("name", some_long(CASES, "end-workers-older"))
def test_a_node_is_killed(three_nodes: ApacheKafkaCluster, name: str) -> None:
    case = CASES[name]
    until_whole(three_nodes)
    load = case.make(Names.fresh(three_nodes.bootstrap))
    loads = [load, Follower(load)]
    for each in loads:
        each.start()
    try:
        kill_at(three_nodes, loads, load, case.moment, random.Random(1), frozen=case.frozen)
    finally:
        for each in loads:
            each.stop()
    assert [wrong for each in loads for wrong in each.deviations()] == []
    if case.frozen:
        assert load.seen["UnknownOutcome"] >= 1


def test_what_is_missing_doubled_or_not_committed_is_found(three_nodes: ApacheKafkaCluster) -> None:
    names = Names.fresh(three_nodes.bootstrap)
    stream, transactions = Stream(names), Transactions(names, "transactions", 2)
    for load in (stream, transactions):
        load.start()
    wait([stream, transactions], lambda: stream.done > 0 and transactions.done > 2)
    for load in (stream, transactions):
        load.stop()
        assert load.deviations() == []
    stream.placed[1].append(stream.placed[1][-1])
    stream.placed[2].pop(0)
    assert [each.partition(" is ")[0] for each in stream.deviations()] == [
        "stream: partition 1",
        "stream: partition 2",
    ]
    last = max(transactions.ends)
    transactions.ends[0] = End.ABORTED
    transactions.ends[last + 1] = End.COMMITTED
    *in_partitions, of_offset = transactions.deviations()
    assert len(in_partitions) == len(transactions.places)
    assert f"transaction {last + 1}" in of_offset
