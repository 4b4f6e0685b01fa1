"""Every API of transactions in every version: the answer decodes to its last byte, and is Apache
Kafka's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.steps import wait_for_coordinator
from tests.interop.broker.raw.transactions import VERSIONS, Probe, sequenced
from tests.interop.harness import Compare, Names, Transcript

pytestmark = pytest.mark.interop

Fields = dict[str, Any]
TOPIC, GROUP = "topic", "group"


def init_producer_id(probe: Probe, version: int) -> Fields:
    name = {"transactional_id": probe.names(f"id-{version}"), "transaction_timeout": 60_000}
    return {**name, "producer_id": -1, "producer_epoch": -1}


def add_partitions_to_txn(probe: Probe, version: int) -> Fields:
    who = probe.producer(f"id-{version}")
    topics = [{"name": probe.names(TOPIC), "partitions": [0]}]
    transaction = {**who.fields(), "verify_only": False, "topics": topics}
    return {**who.fields(), "v3_and_below_topics": topics, "transactions": [transaction]}


def add_offsets_to_txn(probe: Probe, version: int) -> Fields:
    return {**probe.producer(f"id-{version}").fields(), "group_id": probe.names(GROUP)}


def end_txn(probe: Probe, version: int) -> Fields:
    who = probe.producer(f"id-{version}")
    probe.add(who, (probe.names(TOPIC), 0))
    return {**who.fields(), "committed": True}


def write_txn_markers(probe: Probe, version: int) -> Fields:
    who = probe.producer(f"id-{version}")
    marker = {
        "producer_id": who.producer_id,
        "producer_epoch": who.producer_epoch,
        "transaction_result": True,
        "topics": [{"name": probe.names(TOPIC), "partition_indexes": [0]}],
        "coordinator_epoch": 0,
        "transaction_version": 0,
    }
    return {"markers": [marker]}


def txn_offset_commit(probe: Probe, version: int) -> Fields:
    who, group = probe.producer(f"id-{version}"), probe.names(GROUP)
    assert probe.add_offsets(who, group) == "NONE"
    part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 0}
    topics = [{"name": probe.names(TOPIC), "partitions": [{**part, "committed_metadata": None}]}]
    member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    return {**who.fields(), **member, "group_id": group, "topics": topics}


def describe_producers(probe: Probe, version: int) -> Fields:
    place = (probe.names(TOPIC), 0)
    assert probe.produce(place, sequenced(probe.producer(None), 0, b"x"))[0] == "NONE"
    return {"topics": [{"name": place[0], "partition_indexes": [0]}]}


def describe_transactions(probe: Probe, version: int) -> Fields:
    # One that is open: kio cannot read the time at which no transaction has begun.
    who = probe.producer("open")
    probe.add(who, (probe.names(TOPIC), 0))
    return {"transactional_ids": [who.transactional_id]}


def list_transactions(probe: Probe, version: int) -> Fields:
    who = probe.producer(f"id-{version}")
    filters = {"state_filters": ["Empty"], "producer_id_filters": [who.producer_id]}
    return {**filters, "duration_filter": -1, "transactional_id_pattern": None}


BENIGN: Final[dict[ApiKey, Callable[[Probe, int], Fields]]] = {
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.END_TXN: end_txn,
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
}


def every_txn_version(bootstrap: str, names: Names, transcript: Transcript) -> None:
    with Probe(bootstrap, names, transcript) as probe:
        probe.topic(TOPIC)
        wait_for_coordinator(probe.connection, names(GROUP))
        for api, (lowest, highest) in VERSIONS.items():
            for version in range(lowest, highest + 1):
                answer = probe.ask(api, version, BENIGN[api](probe, version))
                probe.note(f"{api.name} v{version}", answer)


SCRIPTS = (every_txn_version,)


def test_every_version_is_answered_as_apache_kafka_answers_it(compare: Compare) -> None:
    compare(every_txn_version)
