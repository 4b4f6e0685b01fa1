"""What a stranger can see of a broker: every partition read in both ways, offsets, transactions.

`look` asks by the protocol alone, as any client could, and reads committed records as the protocol
tells a consumer to (by the list of aborted transactions in the answer). Beside that it works out
from the markers in the log which records are committed, so that a judge can compare the two.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from onceflow.records.batch import StoredBatch, iter_stored
from onceflow.records.control import MarkerType, parse_marker
from onceflow.records.plain import read_placed
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import encode
from tests.interop.broker.raw.raw_client import make_request
from tests.sim.txn.client import INPUT
from tests.sim.txn.history import Place, PromiseBroken
from tests.unit.broker.broker_under_test import RawClient

COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"


class Found(NamedTuple):
    """A record in the log."""

    offset: int
    value: bytes
    producer_id: int
    epoch: int


@dataclass(slots=True)
class SeenLog:
    """One partition."""

    high_watermark: int = -1
    last_stable_offset: int = -1
    listed: tuple[int, int] = (-1, -1)
    """Its end for both kinds of readers, by ListOffsets."""
    records: list[Found] = field(default_factory=list)
    state: dict[int, str] = field(default_factory=dict)
    """By offset of a record, what became of it, as the markers say."""
    visible: dict[int, bytes] = field(default_factory=dict)
    """What a reader of committed records gets."""
    open: dict[int, int] = field(default_factory=dict)
    """By producer id, where its open transaction starts (DescribeProducers)."""
    epochs: dict[int, int] = field(default_factory=dict)
    """By producer id, the largest epoch in the log."""


@dataclass(slots=True)
class Seen:
    """The whole broker."""

    logs: dict[Place, SeenLog] = field(default_factory=dict)
    offsets: dict[str, tuple[str, int]] = field(default_factory=dict)
    transactions: dict[str, tuple[str, int]] = field(default_factory=dict)
    """State and producer id of each transactional id."""


@lru_cache(maxsize=4096)
def _body(key: ApiKey, version: int, fields: str) -> bytes:
    """The bytes of a request, by its fields as Python writes them: the same are sent to thousands
    of brokers, and making them costs more than answering them."""
    return encode(make_request(key, version, literal_eval(fields)))


async def ask(client: RawClient, key: ApiKey, version: int, fields: Any) -> Any:
    """As `RawClient.ask`, for plain fields."""
    client.send_body(key, version, _body(key, version, repr(fields)))
    return await client.receive(key, version)


async def look(client: RawClient, places: Sequence[Place], groups: Sequence[str]) -> Seen:
    """Asks for everything."""
    seen = Seen({place: SeenLog() for place in places})
    if places:
        for isolation in (0, 1):
            await _list_offsets(client, seen, isolation)
        await _describe_producers(client, seen)
        await _read(client, seen, isolation=0)
        await _read(client, seen, isolation=1)
        await _committed_offsets(client, seen, groups)
    answer = await ask(client, ApiKey.LIST_TRANSACTIONS, 0, {})
    for row in answer["transaction_states"]:
        state = row["transaction_state"], row["producer_id"]
        seen.transactions[row["transactional_id"]] = state
    return seen


def _by_topic(places: Sequence[Place]) -> dict[str, list[Place]]:
    topics: dict[str, list[Place]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place)
    return topics


async def _list_offsets(client: RawClient, seen: Seen, isolation: int) -> None:
    topics = [
        {
            "name": name,
            "partitions": [
                {"partition_index": each.partition, "timestamp": -1, "current_leader_epoch": -1}
                for each in places
            ],
        }
        for name, places in _by_topic(list(seen.logs)).items()
    ]
    fields = {"replica_id": -1, "isolation_level": isolation, "topics": topics}
    answer = await ask(client, ApiKey.LIST_OFFSETS, 7, fields)
    for topic in answer["topics"]:
        for row in topic["partitions"]:
            log = seen.logs[Place(topic["name"], row["partition_index"])]
            both = list(log.listed)
            both[isolation] = row["offset"]
            log.listed = both[0], both[1]


async def _describe_producers(client: RawClient, seen: Seen) -> None:
    topics = [
        {"name": name, "partition_indexes": [each.partition for each in places]}
        for name, places in _by_topic(list(seen.logs)).items()
    ]
    answer = await ask(client, ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})
    for topic in answer["topics"]:
        for row in topic["partitions"]:
            log = seen.logs[Place(topic["name"], row["partition_index"])]
            log.open = {
                each["producer_id"]: each["current_txn_start_offset"]
                for each in row["active_producers"]
                if each["current_txn_start_offset"] >= 0
            }


async def _committed_offsets(client: RawClient, seen: Seen, groups: Sequence[str]) -> None:
    topics = [{"name": INPUT.topic, "partition_indexes": [INPUT.partition]}]
    asked = [{"group_id": group, "topics": topics} for group in groups]
    answer = await ask(client, ApiKey.OFFSET_FETCH, 8, {"groups": asked, "require_stable": True})
    for group in answer["groups"]:
        row = group["topics"][0]["partitions"][0]
        code = group["error_code"] if group["error_code"] != "NONE" else row["error_code"]
        seen.offsets[group["group_id"]] = code, row["committed_offset"]


async def _read(client: RawClient, seen: Seen, *, isolation: int) -> None:
    """Every partition from its first record to its end."""
    position = dict.fromkeys(seen.logs, 0)
    collected: dict[Place, list[StoredBatch]] = {place: [] for place in seen.logs}
    aborted: dict[Place, set[tuple[int, int]]] = {place: set() for place in seen.logs}
    while position:
        for place, row in await _fetch(client, position, isolation):
            log = seen.logs[place]
            log.high_watermark = row["high_watermark"]
            log.last_stable_offset = row["last_stable_offset"]
            batches = list(iter_stored(row["records"] or b""))
            collected[place] += batches
            rows = row["aborted_transactions"] or []
            aborted[place] |= {(each["producer_id"], each["first_offset"]) for each in rows}
            if batches:
                position[place] = batches[-1].header.next_offset
            end = log.last_stable_offset if isolation else log.high_watermark
            if not batches or position[place] >= end:
                if position[place] < end and not batches:
                    raise PromiseBroken(f"{place}: reads end at {position[place]}, not at {end}")
                del position[place]
    for place, log in seen.logs.items():
        if isolation:
            log.visible = dict(_committed(collected[place], aborted[place]))
        else:
            _take_in(log, collected[place])


async def _fetch(
    client: RawClient, position: dict[Place, int], isolation: int
) -> list[tuple[Place, Any]]:
    topics = [
        {
            "topic": name,
            "partitions": [
                {
                    "partition": each.partition,
                    "fetch_offset": position[each],
                    "partition_max_bytes": 1 << 20,
                    "current_leader_epoch": -1,
                }
                for each in places
            ],
        }
        for name, places in _by_topic(list(position)).items()
    ]
    fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 24}
    fields |= {"isolation_level": isolation}
    answer = await ask(client, ApiKey.FETCH, 12, {**fields, "topics": topics})
    found = []
    for topic in answer["responses"]:
        for row in topic["partitions"]:
            if row["error_code"] != "NONE":
                raise PromiseBroken(f"{topic['topic']}: a fetch ends with {row['error_code']}")
            found.append((Place(topic["topic"], row["partition_index"]), row))
    return found


def _take_in(log: SeenLog, batches: Sequence[StoredBatch]) -> None:
    """Records, and what the markers say of them."""
    undecided: dict[int, list[int]] = {}
    for batch in batches:
        header = batch.header
        known = log.epochs.get(header.producer_id, -1)
        log.epochs[header.producer_id] = max(known, header.producer_epoch)
        if header.is_control:
            decision = parse_marker(batch) if header.record_count else None
            if decision is not None:
                state = COMMITTED if decision.type is MarkerType.COMMIT else ABORTED
                for offset in undecided.pop(header.producer_id, []):
                    log.state[offset] = state
            continue
        for offset, record in read_placed(batch):
            who = header.producer_id, header.producer_epoch
            log.records.append(Found(offset, record.value or b"", *who))
            log.state[offset] = OPEN if header.is_transactional else COMMITTED
            if header.is_transactional:
                undecided.setdefault(header.producer_id, []).append(offset)


def _committed(
    batches: Sequence[StoredBatch], aborted: set[tuple[int, int]]
) -> Iterator[tuple[int, bytes]]:
    """What a consumer of committed records passes on, by the rules of the protocol."""
    waiting = sorted(aborted, key=lambda each: each[1])
    out: set[int] = set()
    for batch in batches:
        header = batch.header
        while waiting and waiting[0][1] <= header.last_offset:
            out.add(waiting.pop(0)[0])
        if header.is_control:
            decision = parse_marker(batch) if header.record_count else None
            if decision is not None and decision.type is MarkerType.ABORT:
                out.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in out):
            for offset, record in read_placed(batch):
                yield offset, record.value or b""
