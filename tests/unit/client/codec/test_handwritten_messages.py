"""The messages that are written and read by hand, held against the message library."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.codec.cluster import (
    TRANSACTION,
    find_coordinator_request,
    list_offset_request,
    metadata_request,
    offset_fetch_request,
    read_api_versions,
    write_api_versions,
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
    producer_id_request,
    read_answer,
    versions_for,
)
from onceflow.client.codec.versions import VersionRange
from onceflow.client.types import LATEST, PartitionMetadata
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


@pytest.mark.parametrize("version", [3, 4, 5])
def test_init_without_transactions(version: int) -> None:
    request = producer_id_request()
    sent = decode(
        message_class(request.api, version, "request"), memoryview(request.write(version))
    )
    assert whose(sent) == (None, -1, -1)
    kind: Any = message_class(request.api, version, "response")
    answer = kind(throttle_time=NO_TIME, error_code=ErrorCode.NONE, producer_id=7, producer_epoch=0)
    found = request.read(version, memoryview(encode(answer)))
    assert found == TransactionResponse(0, 7, 0)


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


@pytest.mark.parametrize("version", range(5))
def test_api_versions(version: int) -> None:
    key = ApiKey.API_VERSIONS
    body = memoryview(write_api_versions(version, "onceflow", "1"))
    sent = decode(message_class(key, version, "request"), body)
    if version >= 3:
        assert (sent.client_software_name, sent.client_software_version) == ("onceflow", "1")
    of = classes(key, version, "response")
    for epoch, features in ((4, {"transaction.version": 2}), (-1, {})):
        later: dict[str, Any] = {} if version < 1 else {"throttle_time": NO_TIME}
        if version >= 3:
            feature = of.FinalizedFeatureKey(
                name="transaction.version", max_version_level=2, min_version_level=0
            )
            later |= {"finalized_features_epoch": epoch, "finalized_features": (feature,)}
        answer = of.ApiVersionsResponse(
            error_code=ErrorCode.NONE,
            api_keys=(of.ApiVersion(api_key=26, min_version=0, max_version=5),),
            **later,
        )
        offer = read_api_versions(version, memoryview(encode(answer)))
        known = (features, epoch) if version >= 3 else ({}, -1)
        assert offer == (0, {26: VersionRange(0, 5)}, *known)


def test_a_broker_that_does_not_know_the_version_answers_in_the_oldest() -> None:
    of = classes(ApiKey.API_VERSIONS, 0, "response")
    answer = of.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(of.ApiVersion(api_key=18, min_version=0, max_version=2),),
    )
    offer = read_api_versions(4, memoryview(encode(answer)))
    assert (offer.error, offer.versions) == (35, {18: VersionRange(0, 2)})


def topic_of(of: Any, version: int, name: str, code: Any, partitions: list[Any]) -> Any:
    more = {"topic_id": UUID(int=7) if partitions else None} if version >= 10 else {}
    return of.MetadataResponseTopic(
        error_code=code, name=name, is_internal=False, partitions=tuple(partitions), **more
    )


@pytest.mark.parametrize("version", range(4, 13))
def test_metadata(version: int) -> None:
    key = ApiKey.METADATA
    for names, create in ((["orders", "bills"], False), ([], True), (None, True)):
        body = memoryview(metadata_request(names, create=create).write(version))
        sent = decode(message_class(key, version, "request"), body)
        assert (sent.topics and [each.name for each in sent.topics]) == (names or sent.topics)
        assert (sent.topics is None) == (names is None)
        assert sent.allow_auto_topic_creation is create
    of = classes(key, version, "response")
    later: dict[str, Any] = {"offline_replicas": (3,)} if version >= 5 else {}
    later |= {"leader_epoch": 8} if version >= 7 else {}
    parts = [
        of.MetadataResponsePartition(
            error_code=ErrorCode.NONE,
            partition_index=number,
            leader_id=leader,
            replica_nodes=(1, 2, 3),
            isr_nodes=(1,),
            **later,
        )
        for number, leader in ((1, -1), (0, 2))
    ]
    answer = of.MetadataResponse(
        throttle_time=NO_TIME,
        brokers=(of.MetadataResponseBroker(node_id=2, host="b", port=9, rack="r"),),
        cluster_id="c",
        controller_id=1,
        topics=(
            topic_of(of, version, "orders", ErrorCode.NONE, parts),
            topic_of(of, version, "gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        ),
    )
    found = metadata_request([]).read(version, memoryview(encode(answer)))
    assert found.brokers == {2: BrokerAddress("b", 9)}
    assert found.controller == 1
    (code, orders), (missing, gone) = found.topics
    assert (code, missing, gone.name, gone.partitions) == (0, 3, "gone", ())
    assert orders.topic_id == (UUID(int=7) if version >= 10 else None)
    assert orders.partitions == (
        PartitionMetadata(0, 2, (1, 2, 3), (1,)),
        PartitionMetadata(1, -1, (1, 2, 3), (1,)),
    )


def test_find_coordinator() -> None:
    request = find_coordinator_request(TRANSACTION, "payments")
    key, version = request.api, request.versions.newest
    sent = decode(message_class(key, version, "request"), memoryview(request.write(version)))
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
    found = request.read(version, memoryview(encode(answer)))
    assert found == (15, "wait", 1, BrokerAddress("b", 9))
    empty = of.FindCoordinatorResponse(throttle_time=NO_TIME, coordinators=())
    assert request.read(version, memoryview(encode(empty))).error == 15


def test_list_offsets() -> None:
    request = list_offset_request(BILLS, LATEST, read_committed=True)
    key, version = request.api, request.versions.newest
    sent = decode(message_class(key, version, "request"), memoryview(request.write(version)))
    part = sent.topics[0].partitions[0]
    assert (sent.topics[0].name, part.partition_index, part.timestamp) == ("bills", 300, LATEST)
    assert (sent.replica_id, sent.isolation_level) == (-1, 1)
    of = classes(key, version, "response")
    given = of.ListOffsetsPartitionResponse(
        partition_index=300, error_code=ErrorCode.NONE, timestamp=-1, offset=77, leader_epoch=2
    )
    topic = of.ListOffsetsTopicResponse(name="bills", partitions=(given,))
    answer = of.ListOffsetsResponse(throttle_time=NO_TIME, topics=(topic,))
    assert request.read(version, memoryview(encode(answer))) == (0, 77)


def test_offset_fetch() -> None:
    request = offset_fetch_request("readers", {"orders": [0, 1]}, require_stable=True)
    key, version = request.api, request.versions.newest
    sent = decode(message_class(key, version, "request"), memoryview(request.write(version)))
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
    found = request.read(version, memoryview(encode(answer)))
    assert found == (16, {ORDERS: (88, OffsetToCommit(41, "note", 3))})


@pytest.mark.parametrize(
    "read",
    [
        *(partial(read_api_versions, version) for version in range(5)),
        *(partial(metadata_request([]).read, version) for version in range(4, 13)),
        partial(find_coordinator_request(TRANSACTION, "payments").read, 4),
        partial(list_offset_request(BILLS, LATEST, read_committed=True).read, 7),
        partial(offset_fetch_request("readers", {}, require_stable=True).read, 8),
        partial(producer_id_request().read, 5),
        lambda buffer: read_answer(InitProducerIdRequest(WHO, 1), 5, buffer),
        lambda buffer: read_answer(AddPartitions(WHO, ()), 3, buffer),
    ],
)
def test_what_is_cut_off_is_malformed(read: Any) -> None:
    for size in range(6):
        with pytest.raises(MessageMalformed):
            read(memoryview(b"\x00\x00\x00\x00\x02\x7f"[:size]))
