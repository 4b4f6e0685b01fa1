"""Transactions request by request: each request in any version, answers in terms that compare.

A broker's own numbers are told by what they are to the script: producer ids in the order in which
they were first seen, times by whether they are set at all. Epochs, offsets and error names stay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.describe import describe_transactions
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import (
    NOT_YET,
    START_MS,
    create_topic,
    fetch_fields,
    topic_id,
    values_in,
)
from tests.interop.broker.raw.world import stable
from tests.interop.harness import Names, Transcript, eventually

COORDINATOR_OF_TRANSACTIONS: Final = 1
READ_COMMITTED: Final = 1
ALL_PARTITIONS: Final = 100
"""So many names, counted up, are spread over all fifty partitions of the coordinator's topic."""
TV2_PRODUCE, TV2_END, TV2_OFFSETS = 12, 5, 5
"""From these versions on, a request is that of a client of transaction version 2."""
TV1_PRODUCE, TV1_END = 11, 4
BUSY: Final = NOT_YET | {"CONCURRENT_TRANSACTIONS"}
SETTLED: Final = {"Empty", "CompleteCommit", "CompleteAbort"}
TIMES: Final = {"transaction_start_time", "last_timestamp", "log_append_time"}
Place = tuple[str, int]


class Identity(NamedTuple):
    """Who a producer says it is."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int

    def with_epoch(self, change: int) -> Identity:
        return self._replace(producer_epoch=self.producer_epoch + change)

    def fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "v3_and_below_transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "v3_and_below_producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "v3_and_below_producer_epoch": self.producer_epoch,
        }


def sequenced(
    who: Identity, base_sequence: int, *values: bytes, transactional: bool | None = None
) -> bytes:
    """A batch with the producer's identity in it; transactional if the producer is."""
    if transactional is None:
        transactional = who.transactional_id is not None
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=base_sequence,
        batch_size=1 << 24,
    )
    for number, value in enumerate(values):
        assert builder.append(number, START_MS + number, b"k", value, []) is not None
    return bytes(builder.build())


def by_topic(places: Sequence[Place]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return topics


def wait_for_coordinators(connection: RawConnection) -> None:
    """Returns when transactions of any name can begin. Asking for a coordinator makes it."""
    asked = {"key": "any", "key_type": COORDINATOR_OF_TRANSACTIONS}
    eventually(
        lambda: connection.ask(ApiKey.FIND_COORDINATOR, 3, asked)["error_code"],
        lambda error: error not in NOT_YET,
    )
    names = [f"name {number}" for number in range(ALL_PARTITIONS)]

    def errors() -> set[str]:
        return {row["error_code"] for row in describe_transactions(connection, names)}

    eventually(errors, lambda found: not found & NOT_YET)


@dataclasses.dataclass(slots=True)
class Probe:
    """One connection, and what it brought."""

    bootstrap: str
    names: Names
    transcript: Transcript
    connection: RawConnection = dataclasses.field(init=False)
    _producer_ids: dict[int, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection = RawConnection(self.bootstrap)
        wait_for_coordinators(self.connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.connection.__exit__(kind, error, traceback)

    def ask(self, api: int, version: int, fields: Mapping[str, Any]) -> Any:
        return self.connection.ask(api, version, fields)

    def note(self, label: str, answer: object) -> None:
        self.transcript.note(label, self.told(answer))

    def told(self, value: Any) -> Any:
        """An answer without what is a broker's own."""
        return stable(self._told(value), self.bootstrap)

    def _told(self, value: Any) -> Any:
        if isinstance(value, dict):
            refused = value.get("error_code", "NONE") != "NONE"
            return {key: self._field(key, inner, refused) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._told(inner) for inner in value]
        return value

    def _field(self, key: str, value: Any, refused: bool) -> Any:
        if key in TIMES and value is not None:
            return "<time>" if value > 0 else value
        # A refusal may name producer 0 without meaning anyone.
        if key == "producer_id" and value >= 0 and not refused:
            return self.producer_name(value)
        if key == "partitions" and value and isinstance(value[0], int):
            return sorted(value)
        return self._told(value)

    def producer_name(self, producer_id: int) -> str:
        return self._producer_ids.setdefault(producer_id, f"<producer {len(self._producer_ids)}>")

    def topic(self, label: str = "topic", *, partitions: int = 1) -> str:
        name = self.names(label)
        create_topic(self.connection, name, partitions=partitions)
        return name

    def init(
        self,
        transactional_id: str | None,
        *,
        producer_id: int = -1,
        epoch: int = -1,
        timeout_ms: int = 60_000,
        version: int = 4,
    ) -> Any:
        fields = {
            "transactional_id": transactional_id,
            "transaction_timeout": timeout_ms,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }
        return self.ask(ApiKey.INIT_PRODUCER_ID, version, fields)

    def producer(
        self, label: str | None, *, timeout_ms: int = 60_000, version: int = 4
    ) -> Identity:
        """A producer that is ready; with a label, one of transactions."""
        name = None if label is None else self.names(label)
        answer = eventually(
            lambda: self.init(name, timeout_ms=timeout_ms, version=version),
            lambda answer: answer["error_code"] not in BUSY,
        )
        assert answer["error_code"] == "NONE", answer
        self.producer_name(answer["producer_id"])
        return Identity(name, answer["producer_id"], answer["producer_epoch"])

    def add(self, who: Identity, *places: Place, version: int = 3) -> Any:
        """What AddPartitionsToTxn answers, up to version 3, as it is for clients."""
        topics = [{"name": name, "partitions": ids} for name, ids in by_topic(places).items()]
        fields = {**who.fields(), "v3_and_below_topics": topics}
        answer = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, fields)
        rows = answer["results_by_topic_v3_and_below"]
        return [
            [row["name"], each["partition_index"], each["partition_error_code"]]
            for row in sorted(rows, key=lambda row: str(row["name"]))
            for each in sorted(row["results_by_partition"], key=lambda p: int(p["partition_index"]))
        ]

    def add_offsets(self, who: Identity, group: str, *, version: int = 3) -> Any:
        fields = {**who.fields(), "group_id": group}
        return self.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, fields)["error_code"]

    def end(self, who: Identity, *, commit: bool, version: int = TV1_END) -> Any:
        answer = self.ask(ApiKey.END_TXN, version, {**who.fields(), "committed": commit})
        answer.pop("throttle_time")
        return answer

    def ended(self, who: Identity, *, commit: bool, version: int = TV1_END) -> Identity:
        """Ends the transaction, and returns when its markers are written; who the producer is
        from then on."""
        answer = self.end(who, commit=commit, version=version)
        assert answer["error_code"] == "NONE", answer
        self.settle(who)
        if version < TV2_END:
            return who
        return Identity(who.transactional_id, answer["producer_id"], answer["producer_epoch"])

    def settle(self, who: Identity) -> None:
        """Apache Kafka answers EndTxn first and finishes the transaction later."""
        self.settle_name(who.transactional_id)

    def settle_name(self, transactional_id: str | None) -> None:
        eventually(
            lambda: self.described(transactional_id)["transaction_state"],
            lambda state: state in SETTLED,
        )

    def state_of(self, who: Identity) -> str:
        return str(self.described(who.transactional_id)["transaction_state"])

    def described(self, transactional_id: str | None) -> Any:
        (row,) = describe_transactions(self.connection, [transactional_id])
        return row

    def produce(
        self,
        place: Place,
        records: bytes,
        *,
        who: Identity | None = None,
        version: int = TV1_PRODUCE,
    ) -> Any:
        """Error and base offset for one batch; `who` gives the request its transactional id."""
        return self.produce_all([(place, records)], who=who, version=version)[0][1:]

    def produce_all(
        self,
        batches: Sequence[tuple[Place, bytes]],
        *,
        who: Identity | None = None,
        version: int = TV1_PRODUCE,
    ) -> list[Any]:
        """Partition, error and base offset for each batch."""
        topics = []
        for topic in dict.fromkeys(topic for (topic, _), _ in batches):
            parts = [
                {"index": partition, "records": records}
                for (name, partition), records in batches
                if name == topic
            ]
            identity = topic_id(self.connection, topic) if version >= 13 else None
            topics.append({"name": topic, "topic_id": identity, "partition_data": parts})
        fields = {
            "transactional_id": who.transactional_id if who else None,
            "acks": -1,
            "timeout": 10_000,
            "topic_data": topics,
        }
        answer = self.ask(ApiKey.PRODUCE, version, fields)
        rows = [row for topic in answer["responses"] for row in topic["partition_responses"]]
        return sorted([row["index"], row["error_code"], row["base_offset"]] for row in rows)

    def commit_offset(
        self, who: Identity, group: str, place: Place, offset: int, *, version: int = 3, **more: Any
    ) -> Any:
        topic, partition = place
        part = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "in a transaction",
        }
        fields = {
            **who.fields(),
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [part]}],
            **more,
        }
        answer = self.ask(ApiKey.TXN_OFFSET_COMMIT, version, fields)
        return [row["error_code"] for topic in answer["topics"] for row in topic["partitions"]]

    def committed(self, group: str, place: Place, *, stable_only: bool = False) -> Any:
        """Error and offset of what the group has committed."""
        topic, partition = place
        topics = [{"name": topic, "partition_indexes": [partition]}]
        fields = {"group_id": group, "topics": topics, "require_stable": stable_only}
        answer = self.ask(ApiKey.OFFSET_FETCH, 7, fields)
        row = answer["topics"][0]["partitions"][0]
        return [answer["error_code"], row["error_code"], row["committed_offset"]]

    def end_offset(self, place: Place, *, isolation: int = 0) -> int:
        """The high watermark; with isolation 1 the last stable offset."""
        topic, partition = place
        asked = {"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}
        fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
        answer = self.ask(ApiKey.LIST_OFFSETS, 7, fields | {"isolation_level": isolation})
        return int(answer["topics"][0]["partitions"][0]["offset"])

    def ends(self, place: Place) -> dict[str, int]:
        return {
            "high watermark": self.end_offset(place),
            "last stable offset": self.end_offset(place, isolation=READ_COMMITTED),
        }

    def fetch(self, place: Place, offset: int = 0, *, isolation: int = READ_COMMITTED) -> Any:
        """What a fetch brings: its offsets, aborted transactions, and records (markers too)."""
        topic, partition = place
        fields = fetch_fields(topic, offset, isolation_level=isolation)
        fields["topics"][0]["partitions"][0]["partition"] = partition
        answer = self.ask(ApiKey.FETCH, 12, fields)
        row = answer["responses"][0]["partitions"][0]
        names = ("error_code", "high_watermark", "last_stable_offset", "aborted_transactions")
        return {name: row[name] for name in names} | {"records": values_in(row["records"])}


def producers(probe: Probe, topic: str) -> Any:
    asked = [{"name": topic, "partition_indexes": [0, 1]}]
    answer = probe.ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": asked})
    (row,) = answer["topics"]
    return {part["partition_index"]: part["active_producers"] for part in row["partitions"]}


def write_markers(
    probe: Probe,
    who: Identity,
    places: list[Place],
    *,
    commit: bool,
    version: int = 1,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> Any:
    marker = {
        "producer_id": who.producer_id,
        "producer_epoch": who.producer_epoch,
        "transaction_result": commit,
        "topics": [{"name": name, "partition_indexes": [index]} for name, index in places],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": transaction_version,
    }
    answer = probe.ask(ApiKey.WRITE_TXN_MARKERS, version, {"markers": [marker]})
    return sorted(
        [topic["name"], part["partition_index"], part["error_code"]]
        for row in answer["markers"]
        for topic in row["topics"]
        for part in topic["partitions"]
    )


def markers(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """WriteTxnMarkers: by epoch, by the coordinator's epoch, with and without a transaction."""
    with Probe(bootstrap, names, transcript) as probe:
        topic = probe.topic(partitions=3)
        for version in (1, 2):
            probe.producer(f"id-{version}")
            who = probe.producer(f"id-{version}")
            place = (topic, version)
            probe.produce(place, sequenced(who, 0, b"a"), who=who, version=TV2_PRODUCE)
            places = [place, (topic, 9), (names("absent"), 0)]

            def write(
                label: str, who: Identity, places: list[Place], version: int = version, **more: Any
            ) -> None:
                answer = write_markers(probe, who, places, version=version, **more)
                probe.note(f"v{version} {label}", answer)

            write("an old epoch", who.with_epoch(-1), places, commit=True)
            write("a stranger", Identity(None, 1 << 50, 3), [(topic, 0)], commit=True)
            write("the open one", who, places, commit=False)
            probe.note(f"v{version} ends", probe.ends(place))
            write("again", who, [place], commit=False)
            write("a higher coordinator", who, [place], commit=False, coordinator_epoch=7)
            write("a lower coordinator", who, [place], commit=False, coordinator_epoch=6)
            write("a higher epoch", who.with_epoch(3), [place], commit=True, coordinator_epoch=7)
            write("a lower epoch", who.with_epoch(2), [place], commit=True, coordinator_epoch=7)
            probe.note(f"v{version} records", probe.fetch(place))
            probe.note(f"v{version} producers", producers(probe, topic)[1])
            probe.note(f"v{version} state", probe.state_of(who))


VERSIONS: Final[dict[ApiKey, tuple[int, int]]] = {
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
}
"""What Apache Kafka 4.3.1 serves."""
