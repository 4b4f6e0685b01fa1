"""One node is killed under a load, the load goes on without it, the node comes back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from onceflow.client.net.cluster import CoordinatorOf
from tests.interop.client.cluster.loads import Load, Stuck, TransactionalLoad
from tests.interop.client.cluster.strike import Moment
from tests.interop.client.cluster.three_nodes import coordinator_of, leader_of, until_whole
from tools.apache_kafka import ApacheKafkaCluster

PATIENCE_SECONDS: Final = 60.0
_REQUEST_TAKES_S: Final = 0.005
_FROZEN_S: Final = 0.1


class Kill(NamedTuple):
    """What was done, and for how long the slowest load stood still."""

    node_id: int
    stall_s: float


def victim(cluster: ApacheKafkaCluster, load: Load, moment: Moment, rand: random.Random) -> int:
    """The node that is responsible for what the load does at that moment."""
    if moment is Moment.SENDING or not isinstance(load, TransactionalLoad):
        return leader_of(cluster, rand.choice(load.places))
    if moment is Moment.OFFSETS:
        return coordinator_of(cluster, load.group, CoordinatorOf.GROUP)
    return coordinator_of(cluster, load.transactional_id, CoordinatorOf.TRANSACTION)


def kill_at(
    cluster: ApacheKafkaCluster,
    loads: Sequence[Load],
    load: Load,
    moment: Moment,
    rand: random.Random,
    *,
    frozen: bool = False,
) -> Kill:
    """Kills at a moment of one load; returns when all loads have gone on without the node, and the
    node is back and has everything."""
    wait(loads, lambda: all(each.done >= each.enough for each in loads))
    node_id = victim(cluster, load, moment, rand)
    load.strike.arm(
        moment,
        partial(cluster.kill, node_id),
        freeze=partial(cluster.freeze, node_id) if frozen else lambda: None,
        delay_s=_FROZEN_S if frozen else rand.uniform(0, _takes_s(load, moment)),
    )
    wait(loads, load.strike.has_struck.is_set)
    killed = time.monotonic()
    goals = {each: each.done + each.enough for each in loads}
    wait(loads, lambda: all(each.done >= goal for each, goal in goals.items()))
    stall_s = time.monotonic() - killed
    cluster.restart(node_id)
    until_whole(cluster)
    return Kill(node_id, stall_s)


def _takes_s(load: Load, moment: Moment) -> float:
    return load.sending_takes_s if moment is Moment.SENDING else _REQUEST_TAKES_S


def wait(loads: Sequence[Load], until: Callable[[], bool]) -> None:
    """Raises `Stuck` when it takes too long, and what a load has failed with."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not until():
        for each in loads:
            each.check()
        if time.monotonic() > deadline:
            done = {each.label: each.done for each in loads}
            raise Stuck(f"no progress within {PATIENCE_SECONDS:g} s: {done}")
        time.sleep(0.01)
