"""What a group has committed is known, or it is not: nothing that a coordinator answers but that
nothing is committed lets a consumer begin where `auto.offset.reset` says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceflow.client.consumer.consumer import Consumer
from onceflow.client.errors.requests import ClientError
from onceflow.testing.world import World, run
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from tests.unit.client.consumer.scripted_coordinator import GROUP, coordinator, offsets
from tests.unit.client.consumer.simulated_readers import P0, P1
from tests.unit.client.scripted_broker import ADDRESS, listen, metadata

TIMES = 3


GOOD = offsets({0: (7, ErrorCode.NONE), 1: (8, ErrorCode.NONE)})
NOT_YET = {
    "a transaction of one": offsets(
        {0: (7, ErrorCode.NONE), 1: (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)}
    ),
    "an epoch of one": offsets({0: (7, ErrorCode.NONE), 1: (-1, ErrorCode.STALE_MEMBER_EPOCH)}),
    "an epoch": offsets({}, ErrorCode.STALE_MEMBER_EPOCH),
    "an epoch, and numbers": offsets(
        {0: (-1, ErrorCode.NONE), 1: (-1, ErrorCode.NONE)}, ErrorCode.STALE_MEMBER_EPOCH
    ),
    "a coordinator that loads": offsets({}, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
}
NEVER = {
    **NOT_YET,
    "one is missing": offsets({0: (7, ErrorCode.NONE)}),
    "of another group": offsets({0: (-1, ErrorCode.NONE), 1: (-1, ErrorCode.NONE)}, group="other"),
    "one is not permitted": offsets(
        {0: (7, ErrorCode.NONE), 1: (-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    ),
}


def play(answers: list[Any], program: Any, *, policy: str = "earliest") -> list[ApiKey]:
    """Runs a program with a consumer whose coordinator says these, the last of them for good; what
    was asked."""

    async def main(world: World) -> list[tuple[ApiKey, int]]:
        left = list(answers)
        seen = await listen(
            world.net.host("broker"),
            {
                ApiKey.METADATA: lambda *_: metadata({"orders": {0: 1, 1: 1}}),
                ApiKey.FIND_COORDINATOR: coordinator,
                ApiKey.OFFSET_FETCH: lambda *_: left.pop(0) if len(left) > 1 else left[0],
                ApiKey.LIST_OFFSETS: lambda *_: None,
                ApiKey.FETCH: lambda *_: None,
            },
        )
        consumer = Consumer(
            str(ADDRESS),
            net=world.net.host("consumer"),
            rand=world.rand.fork("consumer"),
            group_id=GROUP,
            auto_offset_reset=policy,
            enable_auto_commit=False,
        )
        async with consumer:
            await consumer.assign([P0, P1])
            await program(consumer)
        return seen

    return [key for key, _ in run(1, main)[0]]


@pytest.mark.parametrize("answer", NOT_YET.values(), ids=NOT_YET)
def test_what_is_not_known_yet_is_asked_for_again(answer: Any) -> None:
    async def program(consumer: Consumer) -> None:
        assert await consumer.position(P0) == 7
        assert await consumer.position(P1) == 8

    seen = play([answer] * TIMES + [GOOD], program)
    assert seen.count(ApiKey.OFFSET_FETCH) == TIMES + 1
    assert ApiKey.LIST_OFFSETS not in seen


async def poll_on(consumer: Consumer) -> None:
    while True:
        await consumer.poll(5)


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
@pytest.mark.parametrize("answer", NEVER.values(), ids=NEVER)
def test_what_is_never_known_is_an_error_and_no_reason_to_begin_anywhere(
    answer: Any, policy: str
) -> None:
    async def program(consumer: Consumer) -> None:
        for _ in range(2):
            with pytest.raises(ClientError) as raised:
                await poll_on(consumer)
            assert "there is no position" not in str(raised.value)
        with pytest.raises(ClientError):
            await consumer.rewind()
        with pytest.raises(ClientError):
            await consumer.position(P1)
        if answer in (NEVER["a transaction of one"], NEVER["one is missing"]):
            assert await consumer.position(P0) == 7  # of which it is known

    seen = play([answer], program, policy=policy)
    assert ApiKey.LIST_OFFSETS not in seen


def test_only_that_nothing_is_committed_lets_it_begin_elsewhere() -> None:
    async def program(consumer: Consumer) -> None:
        await asyncio.sleep(1)

    seen = play([offsets({0: (-1, ErrorCode.NONE), 1: (8, ErrorCode.NONE)})], program)
    assert ApiKey.LIST_OFFSETS in seen
