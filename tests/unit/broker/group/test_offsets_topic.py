"""`__consumer_offsets` on a real log: transactions come back from it as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceflow.broker.config.live import BrokerSettings
from onceflow.broker.config.settings import BrokerConfig
from onceflow.broker.group.coordinator import GroupService
from onceflow.broker.group.topic import OffsetsTopic
from onceflow.broker.requests.answers import Answer, AnswerPromise
from onceflow.broker.requests.slices import Slices
from onceflow.broker.topics.internal_logs import OFFSETS_TOPIC
from onceflow.broker.topics.internal_topic import Unapplied
from onceflow.broker.topics.topics import Topics
from onceflow.group.config import GroupConfig
from onceflow.group.driver import GroupDependencies
from onceflow.group.events import (
    CommitRequest,
    MemberIdentity,
    OffsetEntry,
    OffsetQuery,
    TxnCommitRequest,
)
from onceflow.group.offsets import FoundOffset
from onceflow.log.store import LogStore
from onceflow.records.batch import iter_stored
from onceflow.records.control import Marker, MarkerType, marker
from onceflow.runtime.clock import SteadyClock
from onceflow.testing.world import World, run as simulate
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.broker.broker_under_test import T, config
from tests.unit.group.coordinator_under_test import Admission

NOBODY = MemberIdentity("", None)
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
TIME_MS = 1_700_000_000_000
PARTITIONS = 2


class Node:
    """The groups of a broker and what they stand on."""

    def __init__(self, world: World, store: LogStore) -> None:
        rand = world.rand.fork("node")
        self.topics = Topics(
            store,
            world.clock,
            rand,
            BrokerSettings(BrokerConfig(data_dir=Path("data"))),
            Slices(world.loop.call_later, lambda *_: None),
            lambda _: None,
        )
        offsets = OffsetsTopic(self.topics, world.clock, PARTITIONS)
        self.groups = GroupService(
            GroupConfig(offsets_topic_num_partitions=PARTITIONS),
            GroupDependencies(
                SteadyClock(world.clock),
                rand,
                world.loop.call_later,
                offsets,
                lambda topic, partition: self.topics.partition(topic, partition) is not None,
            ),
        )
        offsets.replay(self.groups.replay, Unapplied(OFFSETS_TOPIC))
        self.groups.loaded()


@contextmanager
def started(world: World) -> Iterator[Node]:
    """From what is on the disk; stopped in an orderly way."""
    store = LogStore.open(
        world.disk, world.background, world.rand.fork("store"), config().to_store_config()
    )
    node = Node(world, store)
    yield node
    node.groups.close()
    store.close()


async def answered(answer: Answer[T]) -> T:
    if not isinstance(answer, AnswerPromise):
        return answer
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    answer.then(done.set_result)
    return await done


def txn_commit(node: Node, offset: int, producer_id: int) -> Answer[tuple[ErrorCode, ...]]:
    entry = OffsetEntry("orders", 0, offset, -1, None)
    request = TxnCommitRequest("t", "g", NOBODY, -1, ProducerIdAndEpoch(producer_id, 0), (entry,))
    return node.groups.txn_commit(request, Admission())


def commit(node: Node, offset: int) -> Answer[tuple[ErrorCode, ...]]:
    entry = OffsetEntry("orders", 0, offset, -1, None)
    return node.groups.commit(CommitRequest("g", NOBODY, -1, 9, (entry,)))


def end(node: Node, producer_id: int, *, commit: bool) -> None:
    index = node.groups.partition_for("g")
    partition = node.topics.partition(OFFSETS_TOPIC, index)
    assert partition is not None
    kind = MarkerType.COMMIT if commit else MarkerType.ABORT
    batch = marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp_ms=TIME_MS)
    decision = Marker(producer_id, 0, kind, 0, TIME_MS)
    _, ticket = partition.append(batch, marker=decision)
    node.groups.marker_appended(index, producer_id, ticket, commit=commit)


async def fetch(node: Node, *, require_stable: bool = True) -> FoundOffset:
    query = OffsetQuery("g", (("orders", (0,)),))
    found = await answered(node.groups.fetch([query], require_stable=require_stable))
    return found[0][0][1][0]


def offset_of(found: FoundOffset) -> int | None:
    assert found.error is ErrorCode.NONE
    return None if found.value is None else found.value.offset


@pytest.mark.parametrize("commits", [True, False])
def test_what_is_pending_at_a_stop_is_decided_after_the_start(commits: bool) -> None:
    async def main(world: World) -> None:
        with started(world) as node:
            node.topics.create("orders", 1, {})
            await answered(commit(node, 1))
            assert await answered(txn_commit(node, 2, producer_id=7)) == (ErrorCode.NONE,)
            assert (await fetch(node)).error is UNSTABLE
            assert offset_of(await fetch(node, require_stable=False)) == 1
        with started(world) as node:
            assert (await fetch(node)).error is UNSTABLE
            end(node, 7, commit=commits)
            assert offset_of(await fetch(node)) == (2 if commits else 1)
        with started(world) as node:
            assert offset_of(await fetch(node)) == (2 if commits else 1)

    simulate(7, main)


def test_all_that_is_on_its_way_in_one_turn_is_seen_in_the_logs_order() -> None:
    async def main(world: World) -> None:
        with started(world) as node:
            node.topics.create("orders", 1, {})
            txn_commit(node, 5, producer_id=7)
            txn_commit(node, 6, producer_id=8)
            commit(node, 3)
            end(node, 8, commit=True)
            end(node, 7, commit=True)
            assert offset_of(await fetch(node)) == 3
        with started(world) as node:
            assert offset_of(await fetch(node)) == 3

    simulate(7, main)


def test_the_batch_of_a_transaction_says_whose_it_is() -> None:
    async def main(world: World) -> None:
        with started(world) as node:
            node.topics.create("orders", 1, {})
            await answered(txn_commit(node, 5, producer_id=7))
            partition = node.topics.partition(OFFSETS_TOPIC, node.groups.partition_for("g"))
            assert partition is not None
            (batch,) = iter_stored(partition.log.read(0, 1 << 20).read())
            header = batch.header
            assert header.is_transactional
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 0)

    simulate(7, main)
