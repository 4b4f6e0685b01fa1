"""The messages that are written and read by hand, held against the message library."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from onceflow.client.codec.cluster import (
    TRANSACTION,
    VERSIONS,
    read_api_versions,
    read_find_coordinator,
    read_list_offsets,
    read_metadata,
    read_offset_fetch,
    write_api_versions,
    write_find_coordinator,
    write_list_offsets,
    write_metadata,
    write_offset_fetch,
)
from onceflow.client.codec.transactions import (
    AddOffsets,
    AddPartitions,
    EndTxn,
    GroupMember,
    InitProducerIdRequest,
    OffsetToCommit,
    ProducerIdentity,
    TransactionRequest,
    TransactionResponse,
    TxnOffsetCommit,
    read_answer,
    versions_for,
)
from onceflow.client.net.address import BrokerAddress
from onceflow.client.net.versions import VersionRange
from onceflow.client.types import LATEST
from onceflow.errors import MessageMalformed
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import decode, encode, message_class
from onceflow.wire.error_codes import ErrorCode

WHO = ProducerIdentity("payments", 2**40, 32_766)
ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 300)
NO_TIME = timedelta(0)
OLD, NEW = VersionRange(3, 4), VersionRange(5, 5)
OFFSETS = ((ORDERS, OffsetToCommit(41, "note", 9)), (BILLS, OffsetToCommit(2**40)))


def classes(key: ApiKey, version: int, kind: str) -> Any:
    """The module of a message, for the classes inside it."""
    return __import__(message_class(key, version, kind).__module__, fromlist=["*"])


def asked(request: TransactionRequest, version: int) -> Any:
    kind = message_class(request.api, version, "request")
    return decode(kind, memoryview(request.body(version)))


def whose(message: Any) -> tuple[Any, ...]:
    return message.transactional_id, message.producer_id, message.producer_epoch


@pytest.mark.parametrize("version", [3, 4, 5])
def test_init(version: int) -> None:
    found = asked(InitProducerIdRequest(WHO, 60_000), version)
    assert whose(found) == WHO
    assert found.transaction_timeout == timedelta(seconds=60)
    kind: Any = message_class(ApiKey.INIT_PRODUCER_ID, version, "response")
    answer = kind(throttle_time=NO_TIME, error_code=ErrorCode.NONE, producer_id=7, producer_epoch=3)
    told = read_answer(InitProducerIdRequest(WHO, 1), version, memoryview(encode(answer)))
    assert told == TransactionResponse(0, 7, 3)


def test_add_partitions() -> None:
    request = AddPartitions(WHO, (ORDERS, BILLS, TopicPartition("orders", 1)))
    found = asked(request, 3)
    assert found.v3_and_below_transactional_id == "payments"
    assert found.v3_and_below_producer_id == WHO.producer_id
    assert found.v3_and_below_producer_epoch == WHO.producer_epoch
    topics = {each.name: each.partitions for each in found.v3_and_below_topics}
    assert topics == {"orders": (0, 1), "bills": (300,)}
    of = classes(ApiKey.ADD_PARTITIONS_TO_TXN, 3, "response")
    result = of.AddPartitionsToTxnPartitionResult(
        partition_index=300, partition_error_code=ErrorCode.CONCURRENT_TRANSACTIONS
    )
    topic = of.AddPartitionsToTxnTopicResult(name="bills", results_by_partition=(result,))
    answer = of.AddPartitionsToTxnResponse(
        throttle_time=NO_TIME, results_by_topic_v3_and_below=(topic,)
    )
    told = read_answer(request, 3, memoryview(encode(answer)))
    assert told.partitions == ((BILLS, 51),)


@pytest.mark.parametrize("version", [3, 4])
def test_add_offsets(version: int) -> None:
    request = AddOffsets(WHO, "readers")
    found = asked(request, version)
    assert (*whose(found), found.group_id) == (*WHO, "readers")
    kind: Any = message_class(ApiKey.ADD_OFFSETS_TO_TXN, version, "response")
    answer = kind(throttle_time=NO_TIME, error_code=ErrorCode.PRODUCER_FENCED)
    assert read_answer(request, version, memoryview(encode(answer))) == TransactionResponse(90)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_offsets_in_a_transaction(version: int) -> None:
    member = GroupMember("readers", 3, "member", "instance")
    request = TxnOffsetCommit(WHO, member, OFFSETS, OLD)
    found = asked(request, version)
    assert whose(found) == WHO
    assert (found.group_id, found.generation_id) == ("readers", 3)
    assert (found.member_id, found.group_instance_id) == ("member", "instance")
    told = [
        (TopicPartition(topic.name, each.partition_index), each)
        for topic in found.topics
        for each in topic.partitions
    ]
    assert [
        (place, (each.committed_offset, each.committed_metadata, each.committed_leader_epoch))
        for place, each in told
    ] == list(OFFSETS)
    of = classes(ApiKey.TXN_OFFSET_COMMIT, version, "response")
    part = of.TxnOffsetCommitResponsePartition(
        partition_index=0, error_code=ErrorCode.ILLEGAL_GENERATION
    )
    topics = (of.TxnOffsetCommitResponseTopic(name="orders", partitions=(part,)),)
    answer = of.TxnOffsetCommitResponse(throttle_time=NO_TIME, topics=topics)
    assert read_answer(request, version, memoryview(encode(answer))).partitions == ((ORDERS, 22),)


@pytest.mark.parametrize(("version", "versions"), [(3, OLD), (4, OLD), (5, NEW)])
def test_end(version: int, versions: VersionRange) -> None:
    for committed in (True, False):
        found = asked(EndTxn(WHO, committed, versions), version)
        assert (*whose(found), found.committed) == (*WHO, committed)
    kind: Any = message_class(ApiKey.END_TXN, version, "response")
    fields = {"producer_id": 9, "producer_epoch": 1} if version == 5 else {}
    answer = kind(throttle_time=NO_TIME, error_code=ErrorCode.NONE, **fields)
    told = read_answer(EndTxn(WHO, True, versions), version, memoryview(encode(answer)))
    assert told == (TransactionResponse(0, 9, 1) if version == 5 else TransactionResponse())


def test_the_version_alone_says_which_protocol_it_is() -> None:
    assert versions_for(ApiKey.END_TXN, 1) == OLD
    assert versions_for(ApiKey.END_TXN, 2) == NEW
    assert versions_for(ApiKey.TXN_OFFSET_COMMIT, 0) == OLD
    assert versions_for(ApiKey.TXN_OFFSET_COMMIT, 3) == NEW


def test_api_versions() -> None:
    key, version = ApiKey.API_VERSIONS, VERSIONS[ApiKey.API_VERSIONS]
    sent = decode(
        message_class(key, version, "request"), memoryview(write_api_versions("onceflow", "1"))
    )
    assert (sent.client_software_name, sent.client_software_version) == ("onceflow", "1")
    of = classes(key, version, "response")
    feature = of.FinalizedFeatureKey(
        name="transaction.version", max_version_level=2, min_version_level=0
    )
    for epoch, features in ((4, {"transaction.version": 2}), (-1, {})):
        answer = of.ApiVersionsResponse(
            error_code=ErrorCode.NONE,
            api_keys=(of.ApiVersion(api_key=26, min_version=0, max_version=5),),
            throttle_time=NO_TIME,
            finalized_features_epoch=epoch,
            finalized_features=(feature,),
        )
        offer = read_api_versions(memoryview(encode(answer)))
        assert offer == (0, {26: VersionRange(0, 5)}, features)


def test_metadata() -> None:
    key, version = ApiKey.METADATA, VERSIONS[ApiKey.METADATA]
    sent = decode(
        message_class(key, version, "request"), memoryview(write_metadata(["orders", "bills"]))
    )
    assert [each.name for each in sent.topics] == ["orders", "bills"]
    assert not sent.allow_auto_topic_creation
    of = classes(key, version, "response")
    parts = [
        of.MetadataResponsePartition(
            error_code=ErrorCode.NONE,
            partition_index=number,
            leader_id=leader,
            leader_epoch=8,
            replica_nodes=(1, 2, 3),
            isr_nodes=(1,),
            offline_replicas=(),
        )
        for number, leader in ((0, 2), (1, -1))
    ]
    topics = [
        of.MetadataResponseTopic(
            error_code=error, name=name, topic_id=each, is_internal=False, partitions=tuple(inner)
        )
        for name, each, error, inner in (
            ("orders", UUID(int=7), ErrorCode.NONE, parts),
            ("gone", None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        )
    ]
    answer = of.MetadataResponse(
        throttle_time=NO_TIME,
        brokers=(of.MetadataResponseBroker(node_id=2, host="b", port=9, rack="r"),),
        cluster_id="c",
        controller_id=1,
        topics=tuple(topics),
    )
    found = read_metadata(memoryview(encode(answer)))
    assert found.brokers == {2: BrokerAddress("b", 9)}
    assert found.topics == {"orders": 0, "gone": 3}
    assert found.leaders == {ORDERS: 2, TopicPartition("orders", 1): -1}
    assert found.ids == {"orders": str(UUID(int=7))}


def test_find_coordinator() -> None:
    key, version = ApiKey.FIND_COORDINATOR, VERSIONS[ApiKey.FIND_COORDINATOR]
    body = write_find_coordinator(TRANSACTION, "payments")
    sent = decode(message_class(key, version, "request"), memoryview(body))
    assert (sent.key_type, sent.coordinator_keys) == (1, ("payments",))
    of = classes(key, version, "response")
    one = of.Coordinator(
        key="payments",
        node_id=1,
        host="b",
        port=9,
        error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
        error_message="wait",
    )
    answer = of.FindCoordinatorResponse(throttle_time=NO_TIME, coordinators=(one,))
    assert read_find_coordinator(memoryview(encode(answer))) == (15, BrokerAddress("b", 9), "wait")
    empty = of.FindCoordinatorResponse(throttle_time=NO_TIME, coordinators=())
    with pytest.raises(MessageMalformed):
        read_find_coordinator(memoryview(encode(empty)))


def test_list_offsets() -> None:
    key, version = ApiKey.LIST_OFFSETS, VERSIONS[ApiKey.LIST_OFFSETS]
    body = write_list_offsets(BILLS, LATEST, read_committed=True)
    sent = decode(message_class(key, version, "request"), memoryview(body))
    part = sent.topics[0].partitions[0]
    assert (sent.topics[0].name, part.partition_index, part.timestamp) == ("bills", 300, LATEST)
    assert (sent.replica_id, sent.isolation_level) == (-1, 1)
    of = classes(key, version, "response")
    given = of.ListOffsetsPartitionResponse(
        partition_index=300, error_code=ErrorCode.NONE, timestamp=-1, offset=77, leader_epoch=2
    )
    topic = of.ListOffsetsTopicResponse(name="bills", partitions=(given,))
    answer = of.ListOffsetsResponse(throttle_time=NO_TIME, topics=(topic,))
    assert read_list_offsets(memoryview(encode(answer))) == (0, 77)


def test_offset_fetch() -> None:
    key, version = ApiKey.OFFSET_FETCH, VERSIONS[ApiKey.OFFSET_FETCH]
    body = write_offset_fetch("readers", {"orders": [0, 1]}, require_stable=True)
    sent = decode(message_class(key, version, "request"), memoryview(body))
    assert (sent.groups[0].group_id, sent.require_stable) == ("readers", True)
    assert [(each.name, each.partition_indexes) for each in sent.groups[0].topics] == [
        ("orders", (0, 1))
    ]
    of = classes(key, version, "response")
    part = of.OffsetFetchResponsePartitions(
        partition_index=0,
        committed_offset=41,
        committed_leader_epoch=3,
        metadata="note",
        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )
    topic = of.OffsetFetchResponseTopics(name="orders", partitions=(part,))
    group = of.OffsetFetchResponseGroup(
        group_id="readers", topics=(topic,), error_code=ErrorCode.NOT_COORDINATOR
    )
    answer = of.OffsetFetchResponse(throttle_time=NO_TIME, groups=(group,))
    found = read_offset_fetch(memoryview(encode(answer)))
    assert found == (16, {ORDERS: (88, OffsetToCommit(41, "note", 3))})


@pytest.mark.parametrize(
    "read",
    [
        read_api_versions,
        read_metadata,
        read_find_coordinator,
        read_list_offsets,
        read_offset_fetch,
        lambda buffer: read_answer(InitProducerIdRequest(WHO, 1), 5, buffer),
        lambda buffer: read_answer(AddPartitions(WHO, ()), 3, buffer),
    ],
)
def test_what_is_cut_off_is_malformed(read: Any) -> None:
    for size in range(6):
        with pytest.raises(MessageMalformed):
            read(memoryview(b"\x00\x00\x00\x00\x02\x7f"[:size]))
