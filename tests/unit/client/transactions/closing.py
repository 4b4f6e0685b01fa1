"""Producers whose transactions end while they are closed, and what is there afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from onceflow.client.net.connection import BrokerConnection
from onceflow.client.producer.producer import Producer
from onceflow.client.transactions.states import ProducerState
from tests.sim.txn.history import Place
from tests.sim.txn.observe import look
from tests.unit.broker.broker_under_test import RawClient


async def committed(client: RawClient, topic: str = "t") -> list[bytes]:
    """What readers of committed records see, in order."""
    seen = await look(client, [Place(topic, 0)], [])
    return [value for _, value in sorted(seen.logs[Place(topic, 0)].visible.items())]


def is_in(ours: Producer, state: ProducerState) -> bool:
    return ours.state is state


@contextmanager
def unsent() -> Iterator[None]:
    """Batches that are sent meanwhile reach nobody."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerConnection, "submit_then", lambda *given, **named: None)
        yield


async def close_cut_short(ours: Producer, after_s: float = 0.5) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            await ours.close()


async def failure(task: asyncio.Task[Any]) -> BaseException | None:
    """How it ended; that it does is part of the question."""
    done, _ = await asyncio.wait([task], timeout=1e5)
    assert done, "it hangs"
    return asyncio.CancelledError() if task.cancelled() else task.exception()
