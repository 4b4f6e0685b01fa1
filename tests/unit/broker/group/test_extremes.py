"""Ids and requests of extreme size: refused or cut where they come in, never a record that is not
to be read again, nor one that is many times as large as what was sent."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from onceflow.errors import StoreBusy
from onceflow.group import offsets_log
from onceflow.group.records import GroupRecordMalformed, GroupValue, MemberValue, encode_group
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from tests.unit.broker.broker_under_test import RawClient, Running, play, simulated_broker
from tests.unit.broker.txn.transactional_requests import again, committed_offset, ready
from tests.unit.group.coordinator_under_test import Asked, Bench, subscription

NONE = ErrorCode.NONE
LONGEST = 32_767


async def join(client: RawClient, member_id: str, version: int, instance: str | None) -> Any:
    fields = {
        "group_id": "g",
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("orders")}],
    }
    return await client.ask(ApiKey.JOIN_GROUP, version, fields)


@pytest.mark.parametrize("version", [3, 5, 9])
@pytest.mark.parametrize("letter", ["x", "é", "😀"])
@pytest.mark.parametrize("is_static", [True, False])
def test_a_member_id_fits_into_its_record_however_long_the_client_id_is(
    version: int, letter: str, is_static: bool
) -> None:
    name = letter * (LONGEST // len(letter.encode()))

    async def main(world: World) -> None:
        async with simulated_broker(world, group_initial_rebalance_delay_ms=0) as running:
            client = await running.client("short" if is_static else name)
            instance = name if is_static and version >= 5 else None
            joined = await join(client, "", version, instance)
            if joined["error_code"] == "MEMBER_ID_REQUIRED":
                joined = await join(client, joined["member_id"], version, instance)
            assert joined["error_code"] == "NONE"
            assert len(joined["member_id"].encode()) <= LONGEST
            sync = {
                "group_id": "g",
                "generation_id": joined["generation_id"],
                "member_id": joined["member_id"],
                "group_instance_id": instance,
                "assignments": [{"member_id": joined["member_id"], "assignment": b"a"}],
            }
            assert (await client.ask(ApiKey.SYNC_GROUP, 3, sync))["error_code"] == "NONE"
        async with again(world, world.disk) as (running, _):
            group = running.server.node.groups.find("g")
            assert group is not None
            assert [*group.members] == [joined["member_id"]]

    simulate(1, main)


# --- what one request makes ----------------------------------------------------------------------


def commit_fields(group: str, count: int, **more: Any) -> dict[str, Any]:
    part = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "orders", "partitions": [part] * count}],
        **more,
    }


def test_a_commit_does_not_become_many_times_its_size() -> None:
    """The group's id is in each record, and may be long: 30 KB became 64 MB here."""
    long = "g" * 32_000

    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("orders")
        who = await ready(client, "t")
        fields = commit_fields(long, 2_000)
        answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, fields)
        codes = {row["error_code"] for row in answer["topics"][0]["partitions"]}
        assert codes == {"INVALID_COMMIT_OFFSET_SIZE"}
        identity = {
            "transactional_id": "t",
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
        }
        answer = await client.ask(ApiKey.TXN_OFFSET_COMMIT, 5, fields | identity)
        codes = {row["error_code"] for row in answer["topics"][0]["partitions"]}
        assert codes == {"INVALID_COMMIT_OFFSET_SIZE"}
        assert await committed_offset(client, long, "orders") == ("NONE", -1)
        assert running.server.node.groups.find(long) is None
        answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, commit_fields(long, 2))
        assert answer["topics"][0]["partitions"][0]["error_code"] == "NONE"
        answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, commit_fields("short", 2_000))
        assert answer["topics"][0]["partitions"][0]["error_code"] == "NONE"
        assert await committed_offset(client, "short", "orders") == ("NONE", 5)

    play(script)


def test_a_group_of_too_many_bytes_is_no_record() -> None:
    member = MemberValue("m", None, "c", "/h", 1, 1, bytes(8 << 20), b"")
    group = GroupValue("consumer", 1, "range", "m", 0, (member,) * 3)
    assert len(encode_group(group)) > 24 << 20
    with pytest.raises(GroupRecordMalformed, match="33554432 bytes are the limit"):
        encode_group(group._replace(members=(member,) * 4))


LONG = "g" * 500
PLACES = [("orders", index) for index in range(4)] + [("clicks", 0)]


def group_of_many(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Of its tombstones two are written at once."""
    monkeypatch.setattr(offsets_log, "LARGEST_WRITE", 2_000)
    bench = Bench()
    for topic, index in PLACES:
        assert bench.commit(5, group_id=LONG, topic=topic, partition=index).answer == (NONE,)
    return bench


def found(bench: Bench) -> int:
    return sum(bench.fetch(*place, group_id=LONG) == 5 for place in PLACES)


def test_a_group_goes_whole_however_long_its_id_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tombstones as offsets, each with the id in it: written part by part."""
    bench = group_of_many(monkeypatch)
    before = len([*bench.log.records()])
    assert Asked(bench.groups.delete_groups([LONG])).answer == (NONE,)
    assert len([*bench.log.records()]) == before + len(PLACES) + 1
    after = Bench(bench.log.copy())
    for each in (bench, after):
        assert found(each) == 0
        assert each.groups.find(LONG) is None


def test_what_is_refused_in_its_midst_leaves_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = group_of_many(monkeypatch)
    honest, calls = bench.log.append, count()

    def append(*appended: Any) -> Any:
        if next(calls) == 1:
            raise StoreBusy("too much waits")
        return honest(*appended)

    monkeypatch.setattr(bench.log, "append", append)
    refused = Asked(bench.groups.delete_groups([LONG])).answer
    assert refused == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert found(bench) == len(PLACES) - 2
    assert bench.groups.find(LONG) is not None
    assert found(Bench(bench.log.copy())) == len(PLACES) - 2
    assert Asked(bench.groups.delete_groups([LONG])).answer == (NONE,)
    assert found(bench) == 0
