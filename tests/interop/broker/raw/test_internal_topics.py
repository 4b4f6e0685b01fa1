"""What clients may do with the topics in which a broker keeps groups and transactions.

Only requests that leave a shared Apache Kafka as it is: what would change it is validated only.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from onceflow.group.records import OffsetKey, encode_key
from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import batch, produce, wait_for_coordinator
from tests.interop.broker.raw.transactions import (
    TV2_END,
    TV2_PRODUCE,
    Identity,
    Probe,
    sequenced,
    write_markers,
)
from tests.interop.broker.raw.world import stable
from tests.interop.harness import Compare, Names, Script, Transcript

pytestmark = pytest.mark.interop

OFFSETS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
METADATA: Final = "__cluster_metadata"
TOPIC: Final = 2


def made(bootstrap: str, names: Names, transcript: Transcript) -> Probe:
    """A probe of a broker that has its own topics."""
    probe = Probe(bootstrap, names, transcript)
    wait_for_coordinator(probe.connection, names("group"))
    return probe


def administration_of_own_topics(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """To create, to grow, to alter and to cut."""
    with made(bootstrap, names, transcript) as probe:

        def ask(label: str, api: ApiKey, version: int, fields: dict[str, Any]) -> None:
            transcript.note(label, stable(probe.ask(api, version, fields), bootstrap))

        for topic in (OFFSETS, TRANSACTIONS, METADATA):
            row: dict[str, Any] = {"name": topic, "num_partitions": 3, "replication_factor": 1}
            row |= {"assignments": [], "configs": []}
            fields = {"topics": [row], "timeout": 10_000, "validate_only": True}
            ask(f"create {topic}", ApiKey.CREATE_TOPICS, 7, fields)
            row = {"name": topic, "count": 60, "assignments": None}
            fields = {"topics": [row], "timeout": 10_000, "validate_only": True}
            ask(f"grow {topic}", ApiKey.CREATE_PARTITIONS, 3, fields)
            change = {"name": "cleanup.policy", "config_operation": 0, "value": "delete"}
            row = {"resource_type": TOPIC, "resource_name": topic, "configs": [change]}
            fields = {"resources": [row], "validate_only": True}
            ask(f"alter {topic}", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
            part = {"partition_index": 0, "offset": 0}
            fields = {"topics": [{"name": topic, "partitions": [part]}], "timeout": 10_000}
            ask(f"cut {topic}", ApiKey.DELETE_RECORDS, 2, fields)
        row = {"name": METADATA, "topic_id": None}
        fields = {"topics": [row], "timeout": 10_000}
        ask("delete the metadata", ApiKey.DELETE_TOPICS, 6, fields)
        fields = {"topics": [row], "allow_auto_topic_creation": True}
        answer = probe.ask(ApiKey.METADATA, 12, fields)["topics"]
        transcript.note("ask for the metadata", stable(answer, bootstrap))


def writing_to_own_topics(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Records and markers of clients; one of them calls itself as Kafka's tools once did."""
    with made(bootstrap, names, transcript) as probe:
        # Deletes what was never there, so that it does no harm wherever it is taken.
        nothing = batch(None, key=encode_key(OffsetKey(names("group"), names("topic"), 0)))
        with RawConnection(bootstrap, client_id="__admin_client") as admin:
            for label, connection in (("a client", probe.connection), ("an administrator", admin)):
                for topic in (OFFSETS, METADATA):
                    answer = produce(connection, topic, nothing)
                    transcript.note(f"{label} writes to {topic}", answer["error_code"])
        orders = probe.topic("orders")
        for topic in (OFFSETS, TRANSACTIONS):
            place = (topic, 0)
            writer, who = probe.producer("writer"), probe.producer("id")
            records = sequenced(writer, 0, b"a")
            answer = probe.produce(place, records, who=writer, version=TV2_PRODUCE)
            transcript.note(f"a transaction writes to {topic}", answer)
            transcript.note(f"a transaction adds {topic}", probe.add(who, place))
            both = probe.add(who, place, (names("absent"), 0), (orders, 0))
            transcript.note(f"a transaction adds {topic} and others", both)
            assert probe.add(who, (orders, 0)) == [[orders, 0, "NONE"]]
            for verify_only in (True, False):
                answer = broker_adds(probe, who, topic, verify_only=verify_only)
                transcript.note(f"a broker adds {topic}, verify_only={verify_only}", answer)
            transcript.note(
                f"the end after {topic}",
                probe.end(who, commit=False, version=TV2_END)["error_code"],
            )
            probe.settle(who)
            stranger = Identity(None, 1 << 50, 3)
            answer = write_markers(probe, stranger, [place], commit=False)
            transcript.note(f"a stranger's marker in {topic}", answer)


def broker_adds(probe: Probe, who: Identity, topic: str, *, verify_only: bool) -> Any:
    """What AddPartitionsToTxn answers in the version that brokers send to each other."""
    topics = [{"name": topic, "partitions": [0]}]
    row = {**who.fields(), "verify_only": verify_only, "topics": topics}
    answer = probe.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, {"transactions": [row]})
    return [
        part["partition_error_code"]
        for result in answer["results_by_transaction"]
        for each in result["topic_results"]
        for part in each["results_by_partition"]
    ]


def odd_markers(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """Markers of identities that no producer can have."""
    with Probe(bootstrap, names, transcript) as probe:
        place = (probe.topic(), 0)
        for producer_id in (-1, 1 << 50):
            for epoch in (-1, 3):
                for coordinator in (-1, -(2**31), 0):
                    who = Identity(None, producer_id, epoch)
                    answer = write_markers(
                        probe, who, [place], commit=False, coordinator_epoch=coordinator
                    )
                    label = f"producer {producer_id} epoch {epoch} coordinator {coordinator}"
                    transcript.note(label, answer)


SCRIPTS: tuple[Script, ...] = (
    administration_of_own_topics,
    writing_to_own_topics,
    odd_markers,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_own_topics(script: Script, compare: Compare) -> None:
    compare(script)
