"""TxnOffsetCommit over the wire, in every version that is served, and OffsetFetch beside it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from onceflow.broker.group.coordinator import GroupService
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.transactions import ProducerIdAndEpoch
from tests.unit.broker.group.group_requests import nested, send, versions
from tests.unit.group.coordinator_under_test import Bench

KEY = ApiKey.TXN_OFFSET_COMMIT
IDS = {"orders": UUID(int=5), "nowhere": UUID(int=6)}


class Coordinator:
    """Says what it is told to say, and remembers what it was asked."""

    def __init__(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.code = code
        self.asked: list[tuple[str, ProducerIdAndEpoch, str, int]] = []

    def enter_offsets(
        self, transactional_id: str, identity: ProducerIdAndEpoch, group_id: str, version: int
    ) -> ErrorCode:
        self.asked.append((transactional_id, identity, group_id, version))
        return self.code


class Host:
    """A broker, as far as the handlers look at it."""

    def __init__(self, bench: Bench, transactions: Coordinator) -> None:
        self.groups: GroupService = bench.groups
        self.transactions = transactions
        self.topics = Names()


class Names:
    """Topics by their ids."""

    def name_of(self, topic_id: UUID | None) -> str | None:
        return next((name for name, known in IDS.items() if known == topic_id), None)


def topic(version: int, name: str) -> Any:
    partition = nested(
        KEY,
        version,
        "TxnOffsetCommitRequestPartition",
        partition_index=1,
        committed_offset=7,
        committed_leader_epoch=2,
        committed_metadata="m",
    )
    return nested(
        KEY,
        version,
        "TxnOffsetCommitRequestTopic",
        name=name,
        topic_id=IDS.get(name),
        partitions=(partition,),
    )


def commit(host: Host, version: int, *names: str, **fields: Any) -> Any:
    told = {
        "transactional_id": "t",
        "group_id": "g",
        "producer_id": 7,
        "producer_epoch": 3,
        "generation_id": -1,
        "topics": tuple(topic(version, name) for name in names),
    }
    return send(host, KEY, version, **told | fields)


def _name(answered: Any) -> str:
    """Of a topic, by which an answer goes by name or by id."""
    if hasattr(answered, "name"):
        return str(answered.name)
    return next((name for name, known in IDS.items() if known == answered.topic_id), "?")


def codes(answer: Any) -> list[tuple[str, int, ErrorCode]]:
    return [
        (_name(each), part.partition_index, part.error_code)
        for each in answer.topics
        for part in each.partitions
    ]


@pytest.mark.parametrize("version", versions(KEY))
def test_offsets_become_part_of_a_transaction(version: int) -> None:
    bench, coordinator = Bench(), Coordinator()
    host = Host(bench, coordinator)
    asked = commit(host, version, "orders", "nowhere")
    assert codes(asked.answer) == [
        ("orders", 1, ErrorCode.NONE),
        ("nowhere", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert coordinator.asked == [("t", ProducerIdAndEpoch(7, 3), "g", version)]
    assert bench.fetch(partition=1) is None
    bench.end(commit=True)
    value = bench.ask(partition=1).answer.value
    assert value is not None
    assert (value.offset, value.metadata) == (7, "m")
    assert value.leader_epoch == (2 if version >= 2 else -1)


def test_the_batch_is_the_producers() -> None:
    bench = Bench()
    commit(Host(bench, Coordinator()), 5, "orders")
    ((batch,),) = bench.log.batches.values()
    header = batch.header
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 0)


@pytest.mark.parametrize("version", versions(KEY))
def test_members_are_checked_from_the_version_on_that_names_them(version: int) -> None:
    bench = Bench()
    (member_id,) = bench.stable()
    host = Host(bench, Coordinator())

    def code(**fields: Any) -> ErrorCode:
        ((_, _, found),) = codes(commit(host, version, "orders", **fields).answer)
        return found

    knows = version >= 3
    stale = code(member_id=member_id, generation_id=0)
    assert stale == (ErrorCode.ILLEGAL_GENERATION if knows else ErrorCode.NONE)
    stranger = code(member_id="stranger", generation_id=1)
    assert stranger == (ErrorCode.UNKNOWN_MEMBER_ID if knows else ErrorCode.NONE)
    unknown = code(member_id=member_id, generation_id=1, group_instance_id="i")
    assert unknown == (ErrorCode.UNKNOWN_MEMBER_ID if knows else ErrorCode.NONE)
    assert code(member_id=member_id, generation_id=1) == ErrorCode.NONE


def test_a_topic_of_an_unknown_id_keeps_no_other_from_being_committed() -> None:
    bench = Bench()
    host = Host(bench, Coordinator())
    assert codes(commit(host, 6, "gone", "orders").answer) == [
        ("?", 1, ErrorCode.UNKNOWN_TOPIC_ID),
        ("orders", 1, ErrorCode.NONE),
    ]
    bench.end(commit=True)
    assert bench.fetch(partition=1) == 7
    assert codes(commit(host, 6, "gone").answer) == [("?", 1, ErrorCode.UNKNOWN_TOPIC_ID)]


@pytest.mark.parametrize("version", [5, 6])
def test_an_unknown_group_is_told_as_such_from_version_6_on(version: int) -> None:
    answer = commit(Host(Bench(), Coordinator()), version, "orders", generation_id=3).answer
    expected = ErrorCode.ILLEGAL_GENERATION if version < 6 else ErrorCode.GROUP_ID_NOT_FOUND
    assert codes(answer) == [("orders", 1, expected)]


def test_what_the_coordinator_refuses_is_told_of_topics_that_are_there() -> None:
    host = Host(Bench(), Coordinator(ErrorCode.INVALID_PRODUCER_EPOCH))
    assert codes(commit(host, 5, "orders", "nowhere").answer) == [
        ("orders", 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        ("nowhere", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_readers_that_ask_for_stable_offsets_are_told_to_wait(version: int) -> None:
    bench = Bench()
    bench.commit(4, partition=1, metadata="old")
    bench.txn_commit(7, partition=1)
    name = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
    some = (nested(ApiKey.OFFSET_FETCH, version, name, name="orders", partition_indexes=(0, 1)),)
    fields: dict[str, Any] = {"group_id": "g", "topics": some}
    if version >= 8:
        fields = {
            "groups": (nested(ApiKey.OFFSET_FETCH, version, "OffsetFetchRequestGroup", **fields),)
        }

    def fetch(*, require_stable: bool) -> Any:
        asked = send(
            Host(bench, Coordinator()),
            ApiKey.OFFSET_FETCH,
            version,
            require_stable=require_stable,
            **fields,
        )
        group = asked.answer.groups[0] if version >= 8 else asked.answer
        assert version < 2 or group.error_code == ErrorCode.NONE
        return group.topics[0].partitions

    none, pending = fetch(require_stable=True)
    assert (none.committed_offset, none.error_code) == (-1, ErrorCode.NONE)
    if version >= 7:
        assert pending.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert (pending.committed_offset, pending.committed_leader_epoch) == (-1, -1)
        assert pending.metadata == ""
    _, known = fetch(require_stable=False)
    assert (known.committed_offset, known.metadata) == (4, "old")
    assert known.error_code == ErrorCode.NONE
