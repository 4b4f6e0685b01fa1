"""The broker's own topics under any requests: what was accepted is there again after a start.

Requests that may come from anybody, most of them well-formed and some of them extreme, go to a
whole broker, which is killed or stopped in between. Each start has to find the groups, offsets and
transactions that were there before, apply every record, and go on serving.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, note, settings, strategies as st

from onceflow.broker.node import Node
from onceflow.broker.topics.internal_logs import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from onceflow.group.state import Group, GroupState
from onceflow.log.store import LogStore
from onceflow.testing.disk import SimDisk
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.doses import examples
from tests.unit.broker.broker_under_test import NOW_MS, RawClient, Running, simulated_broker
from tests.unit.broker.txn.transactional_requests import Who, killed, sent
from tests.unit.group.coordinator_under_test import subscription

INT32 = st.sampled_from([-(2**31), -2, -1, 0, 1, 2**31 - 1])
INT64 = st.sampled_from([-(2**63), -2, -1, 0, 1, 7, 2**63 - 1])
USUAL = ("a", "b")
ODD = ("\x00", "😀\ud7ff", "x" * 249, "long " * 6_000, "")
ODD_TOPICS = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__cluster_metadata", "?")


def mostly(usual: Sequence[Any], odd: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Four times in five one of the first, so that requests that depend on others are accepted."""
    return st.integers(0, 4).flatmap(lambda dice: st.sampled_from(odd if dice == 3 else usual))


names = mostly(USUAL, ODD)
topics = mostly(["orders"], ODD_TOPICS)
partitions = mostly([0, 1], [2, -1, 2**31 - 1])
Fields = dict[str, Any]


@dataclass
class Clients:
    """What clients were told, and so will say."""

    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    members: dict[str, tuple[str, int]] = field(default_factory=dict)
    sequences: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def identity(self, name: str, odd: tuple[int, int] | None) -> tuple[int, int]:
        return odd or self.producers.get(name, (0, 0))

    def member(self, group: str) -> tuple[str, int]:
        return self.members.get(group, ("", -1))


Request = Callable[[Clients], tuple[ApiKey, int, Fields]]
odd_identities = mostly([None], [None, (-1, -1), (2**63 - 1, 0), (0, 2**15 - 1), (1, -(2**15))])


@st.composite
def entries(draw: st.DrawFn) -> list[Fields]:
    part = st.fixed_dictionaries(
        {
            "partition_index": partitions,
            "committed_offset": INT64,
            "committed_leader_epoch": INT32,
            "committed_metadata": st.sampled_from([None, "", "note", "é" * 4_096]),
        }
    )
    rows = st.fixed_dictionaries(
        {"name": topics, "partitions": st.lists(part, min_size=1, max_size=3)}
    )
    return draw(st.lists(rows, min_size=1, max_size=2))


@st.composite
def commits(draw: st.DrawFn) -> Request:
    group, version, rows = draw(names), draw(st.integers(2, 9)), draw(entries())
    as_member, generation = draw(st.booleans()), draw(mostly([-1], [0, 1, 2**31 - 1]))

    def request(clients: Clients) -> tuple[ApiKey, int, Fields]:
        member, current = clients.member(group) if as_member else ("", generation)
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": current,
            "member_id": member,
            "group_instance_id": None,
            "retention_time": -1,
            "topics": rows,
        }
        return ApiKey.OFFSET_COMMIT, version, fields

    return request


protocols = mostly(["range"], ["", "x" * 9_000])
metadatas = mostly([subscription("orders")], [b"", b"\xff" * 9])


@st.composite
def joins(draw: st.DrawFn) -> Request:
    group, version = draw(names), draw(st.sampled_from([0, 3, 5, 9]))
    fields = {
        "group_id": group,
        "session_timeout": draw(mostly([6_000, 30_000], [1, 2**31 - 1])),
        "rebalance_timeout": draw(mostly([60_000], [-(2**31), -1, 0, 2**31 - 1])),
        "group_instance_id": draw(mostly([None], ["i", ""])),
        "protocol_type": draw(mostly(["consumer"], ["connect", ""])),
        "protocols": [
            {"name": name, "metadata": metadata}
            for name, metadata in draw(st.lists(st.tuples(protocols, metadatas), max_size=2))
        ],
        "reason": None,
    }

    def request(clients: Clients) -> tuple[ApiKey, int, Fields]:
        return ApiKey.JOIN_GROUP, version, {**fields, "member_id": clients.member(group)[0]}

    return request


def member_fields(clients: Clients, group: str, assignment: bytes = b"all") -> Fields:
    """Those of SyncGroup, LeaveGroup and Heartbeat."""
    member, generation = clients.member(group)
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "assignments": [{"member_id": member, "assignment": assignment}],
        "members": [{"member_id": member, "group_instance_id": None, "reason": None}],
    }


@st.composite
def of_members(draw: st.DrawFn) -> Request:
    group, kind = draw(names), draw(st.sampled_from(["sync", "sync", "heartbeat", "leave"]))
    data, odd = draw(st.binary(max_size=9)), draw(mostly([None], [-1, 0, 2**31 - 1]))

    def request(clients: Clients) -> tuple[ApiKey, int, Fields]:
        fields = member_fields(clients, group, data)
        if odd is not None:
            fields["generation_id"] = odd
        if kind == "sync":
            return ApiKey.SYNC_GROUP, 3, fields
        return (ApiKey.LEAVE_GROUP if kind == "leave" else ApiKey.HEARTBEAT), 4, fields

    return request


@st.composite
def inits(draw: st.DrawFn) -> Request:
    name, version, goes_on = draw(names), draw(st.integers(0, 5)), draw(st.booleans())
    timeout = draw(mostly([60_000, 900_000], [0, -1, 2**31 - 1]))
    odd = draw(odd_identities)

    def request(clients: Clients) -> tuple[ApiKey, int, Fields]:
        producer = clients.identity(name, odd) if goes_on else (-1, -1)
        fields = {
            "transactional_id": name,
            "transaction_timeout": timeout,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
        }
        return ApiKey.INIT_PRODUCER_ID, version, fields

    return request


@st.composite
def of_transactions(draw: st.DrawFn) -> Request:
    name, odd, rows = draw(names), draw(odd_identities), draw(entries())
    kind = draw(st.sampled_from(["add", "offsets", "commit", "end", "end", "marker"]))
    group, topic, partition = draw(names), draw(topics), draw(partitions)
    is_new, flag = draw(st.booleans()), draw(st.booleans())
    coordinator = draw(mostly([0], [-(2**31), -1, 2**31 - 1]))

    def request(clients: Clients) -> tuple[ApiKey, int, Fields]:
        producer_id, epoch = clients.identity(name, odd)
        who = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
        older = {f"v3_and_below_{key}": value for key, value in who.items()}
        places = [{"name": topic, "partitions": [partition]}]
        if kind == "add":
            rest = {"v3_and_below_topics": places, "transactions": [{**who, "topics": places}]}
            return ApiKey.ADD_PARTITIONS_TO_TXN, 5 if is_new else 3, {**older, **rest}
        if kind == "offsets":
            return ApiKey.ADD_OFFSETS_TO_TXN, 4, {**who, "group_id": group}
        if kind == "end":
            return ApiKey.END_TXN, 5 if is_new else 4, {**who, "committed": flag}
        if kind == "marker":
            row = {
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "transaction_result": flag,
                "coordinator_epoch": coordinator,
                "transaction_version": 0,
                "topics": [{"name": topic, "partition_indexes": [partition]}],
            }
            return ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [row]}
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        fields = {**who, **member, "group_id": group, "topics": rows}
        return ApiKey.TXN_OFFSET_COMMIT, 5 if is_new else 4, fields

    return request


@st.composite
def produces(draw: st.DrawFn) -> Request:
    name, topic, partition = draw(names), draw(topics), draw(partitions)
    version, odd = draw(st.sampled_from([11, 12, 12])), draw(mostly([None], [0, 2**31 - 1]))
    timestamp = draw(mostly([NOW_MS], [-(2**63), -1, 0, 2**63 - 1]))

    def request(clients: Clients) -> tuple[ApiKey, int, Fields]:
        producer_id, epoch = clients.identity(name, None)
        at = (producer_id, epoch, partition)
        sequence = clients.sequences.get(at, 0) if odd is None else max(odd, 0)
        records = sent(Who(name, producer_id, epoch), sequence, b"v", timestamp=timestamp)
        if topic == "orders":
            clients.sequences[at] = (sequence + 1) % 2**31
        data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
        fields = {"transactional_id": name, "acks": -1, "timeout": 1000, "topic_data": data}
        return ApiKey.PRODUCE, version, fields

    return request


@st.composite
def administration(draw: st.DrawFn) -> Request:
    group, topic, partition = draw(names), draw(topics), draw(partitions)
    policy = draw(st.sampled_from([[], [{"name": "cleanup.policy", "value": "delete"}]]))
    change = {"name": "cleanup.policy", "config_operation": 0, "value": "delete"}
    row: Fields = {
        "name": topic,
        "topic_id": None,
        "partitions": [{"partition_index": partition, "offset": -1}],
    }
    created = {"num_partitions": draw(st.sampled_from([-1, 3])), "replication_factor": 1}
    requests: list[tuple[ApiKey, int, Fields]] = [
        (ApiKey.DELETE_GROUPS, 2, {"groups_names": [group]}),
        (ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": [row]}),
        (ApiKey.METADATA, 12, {"topics": [row], "allow_auto_topic_creation": True}),
        (
            ApiKey.CREATE_TOPICS,
            7,
            {
                "topics": [{**created, "name": topic, "assignments": [], "configs": policy}],
                "timeout": 1000,
            },
        ),
        (
            ApiKey.CREATE_PARTITIONS,
            3,
            {"topics": [{"name": topic, "count": 4, "assignments": None}], "timeout": 1000},
        ),
        (
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            {"resources": [{"resource_type": 2, "resource_name": topic, "configs": [change]}]},
        ),
        (ApiKey.DELETE_RECORDS, 2, {"topics": [row], "timeout": 1000}),
        (ApiKey.DELETE_TOPICS, 6, {"topics": [row], "timeout": 1000}),
    ]
    chosen = draw(st.sampled_from(requests))
    return lambda _: chosen


requests = st.one_of(
    commits(), joins(), of_members(), inits(), inits(), of_transactions(), of_transactions(),
    of_transactions(), produces(), administration(),
)  # fmt: skip
rounds = st.lists(
    st.tuples(st.lists(requests, min_size=15, max_size=40), st.booleans()), min_size=1, max_size=3
)
beginnings = st.lists(administration(), max_size=3)
"""Before there is any group or transaction, and so neither of the topics."""


# --- the world -----------------------------------------------------------------------------------


class Errors(logging.Handler):
    """What a broker says of itself: that it has a defect, or that records were skipped."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


@contextmanager
def listening() -> Iterator[Errors]:
    errors, root = Errors(), logging.getLogger("onceflow")
    root.addHandler(errors)
    try:
        yield errors
    finally:
        root.removeHandler(errors)


async def flushed(store: LogStore) -> None:
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    store.flush().add_done_callback(done.set_result)
    assert await done is None


def state_of(node: Node) -> Mapping[str, object]:
    """All that the log is to keep of groups and transactions."""
    offsets = node.groups._writer.durable
    return {
        "transactions": {each.transactional_id: each for each in node.transactions.all()},
        "offsets": {group: dict(offsets.committed(group)) for group in sorted(offsets.groups())},
        "pending": {
            group: sorted(offsets.pending.of_group(group)) for group in sorted(offsets.groups())
        },
        "groups": {
            each.group_id: essence(each)
            for each in sorted(node.groups.all_groups(), key=lambda each: each.group_id)
            if not is_bare(node, each)
        },
        "stable": {
            (topic.name, partition.index): partition.last_stable_offset
            for topic in node.topics.by_name.values()
            for partition in topic.partitions
        },
        "made": {
            topic.name: (len(topic.partitions), topic.config.cleanup_policy)
            for topic in node.topics.by_name.values()
        },
    }


def is_bare(node: Node, group: Group) -> bool:
    """It was there for its offsets, and they are gone: nothing is to be kept of it."""
    places = node.groups._writer.durable.places(group.group_id)
    return not places and group.protocol_type is None and group.generation == 0


def essence(group: Group) -> object:
    """Of a group on its way to another generation the log knows the last one."""
    if group.state not in (GroupState.STABLE, GroupState.EMPTY):
        return "on its way"
    members = [
        (
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.session_timeout_ms,
            each.rebalance_timeout_ms,
            each.metadata(group.protocol_name or ""),
            each.assignment,
        )
        for each in group.members.values()
    ]
    told = (group.generation, group.protocol_type, group.protocol_name, group.leader)
    return (group.state, *told, members)


async def ask(running: Running, client: RawClient, clients: Clients, request: Request) -> RawClient:
    """Sends it, and hears what is answered; the client to go on with."""
    key, version, fields = request(clients)
    note(f"{key.name} v{version} {fields!r:.200}")
    client.send(key, version, fields)
    client.patience = 1.0  # for a join whose generation others hold up
    try:
        answer = await client.receive(key, version)
    except TimeoutError:
        client.close()
        return await running.client()
    if key in (ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN) and answer.get("producer_id", -1) >= 0:
        identity = answer["producer_id"], answer["producer_epoch"]
        clients.producers[fields["transactional_id"]] = identity
    if key is ApiKey.JOIN_GROUP and answer["member_id"]:
        clients.members[fields["group_id"]] = answer["member_id"], answer["generation_id"]
    return client


async def played(
    world: World, disk: SimDisk, host: str, clients: Clients, script: list[Request], before: Any
) -> tuple[Any, SimDisk]:
    """The state after a round, and what a kill then leaves."""
    async with simulated_broker(
        world, host=host, disk=disk, group_initial_rebalance_delay_ms=0
    ) as running:
        node = running.server.node
        if before is not None:
            compare(before, state_of(node))
        client = await running.client()
        if "orders" not in node.topics.by_name:
            await client.create("orders", 2)
        for request in script:
            client = await ask(running, client, clients, request)
        await flushed(node.store)
        after = state_of(node)
        image = killed(disk)
    return after, image


def compare(before: Any, after: Any) -> None:
    for what, state in before.items():
        if what == "groups":
            known = {name: each for name, each in state.items() if each != "on its way"}
            found = {name: each for name, each in after[what].items() if name in known}
            assert found == known
        else:
            assert after[what] == state, what


def first_requests(name: str) -> list[Request]:
    """A group with a member that has its assignment, and a producer with transactions."""
    join = {
        "group_id": name,
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("orders")}],
        "member_id": "",
    }
    init = {
        "transactional_id": name,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return [
        lambda _: (ApiKey.JOIN_GROUP, 3, join),
        lambda clients: (ApiKey.SYNC_GROUP, 3, member_fields(clients, name)),
        lambda _: (ApiKey.INIT_PRODUCER_ID, 4, init),
    ]


@settings(max_examples=examples(40), deadline=None)
@given(beginning=beginnings, script=rounds, seed=st.integers(0, 2**16))
def test_what_was_accepted_is_there_again_after_a_start(
    beginning: list[Request], script: list[tuple[list[Request], bool]], seed: int
) -> None:
    async def main(world: World) -> None:
        disk, clients, before = world.disk, Clients(), None
        first = [*beginning, *(each for name in USUAL for each in first_requests(name))]
        all_rounds = [(first, False), *script, ([], False)]
        for number, (requests, is_killed) in enumerate(all_rounds):
            before, image = await played(world, disk, f"b{number}", clients, requests, before)
            disk = image if is_killed else disk

    with listening() as errors:
        simulate(seed, main)
    assert errors.lines == []
