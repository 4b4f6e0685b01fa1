"""A client of transactions that tries again until it is answered, and the requests that it sends.

`Caller` asks over a network that may lose and reset; `Requests` knows the fields of each request in
both generations of the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from onceflow.records.plain import PlainRecord, write_records
from onceflow.testing.rand import SimRand
from onceflow.wire.api import ApiKey
from tests.sim.txn.history import NEW, OLD, Identity, Place
from tests.unit.broker.broker_under_test import NOW_MS, RawClient, Running

PRODUCE = {OLD: 9, NEW: 12}
END = {OLD: 3, NEW: 5}
OFFSETS = {OLD: 3, NEW: 5}
INIT = 4
AGAIN = {
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
}
"""Codes that say: nothing was done, ask again soon."""
PLACES = (Place("a", 0), Place("a", 1), Place("b", 0))
TIMEOUT_MS = 2_000
INPUT = PLACES[0]
"""Clients say in their transactions how far they have come in this partition."""


def make_batch(
    identity: Identity, sequence: int, values: Sequence[bytes], *, transactional: bool
) -> bytes:
    """A batch as a producer sends it; each record has a key of its own."""
    records = [PlainRecord(b"key of " + value[:24], value) for value in values]
    made = write_records(
        records,
        NOW_MS,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return bytes(made.buffer)


class Requests:
    """The fields of requests."""

    @staticmethod
    def init(transactional_id: str | None, timeout_ms: int, expected: Identity | None) -> Any:
        return {
            "transactional_id": transactional_id,
            "transaction_timeout": timeout_ms,
            "producer_id": -1 if expected is None else expected.producer_id,
            "producer_epoch": -1 if expected is None else expected.epoch,
        }

    @staticmethod
    def produce(transactional_id: str | None, batches: Sequence[tuple[Place, bytes]]) -> Any:
        topics = [
            {"name": place.topic, "partition_data": [{"index": place.partition, "records": data}]}
            for place, data in batches
        ]
        return {
            "transactional_id": transactional_id,
            "acks": -1,
            "timeout": 1000,
            "topic_data": topics,
        }

    @staticmethod
    def add(transactional_id: str, identity: Identity, place: Place) -> Any:
        return {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [{"name": place.topic, "partitions": [place.partition]}],
        }

    @staticmethod
    def add_offsets(transactional_id: str, identity: Identity, group: str) -> Any:
        return {**_who(transactional_id, identity), "group_id": group}

    @staticmethod
    def offsets(transactional_id: str, identity: Identity, group: str, offset: int) -> Any:
        part = {
            "partition_index": INPUT.partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        return {
            **_who(transactional_id, identity),
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": INPUT.topic, "partitions": [part]}],
        }

    @staticmethod
    def end(transactional_id: str, identity: Identity, *, commit: bool) -> Any:
        return {**_who(transactional_id, identity), "committed": commit}


def _who(transactional_id: str, identity: Identity) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
    }


class Caller:
    """One client's connection, made anew when it is lost."""

    def __init__(self, name: str, rand: SimRand, failures: list[str]) -> None:
        self.name = name
        self.rand = rand
        self.running: Running | None = None
        self._failures = failures
        self._client: RawClient | None = None

    async def ask(self, key: ApiKey, version: int, *requests: Any) -> list[Any]:
        """The answers to requests that are in flight together; all of them are asked again, on a
        new connection, until there are answers."""
        while True:
            try:
                client = await self._connected()
                for fields in requests:
                    client.send(key, version, fields)
                return [await client.receive(key, version) for _ in requests]
            except (OSError, TimeoutError) as error:
                self._failures.append(type(error).__name__)
                self._hang_up()
                await asyncio.sleep(self.rand.uniform(0.01, 0.1))
            except asyncio.CancelledError:
                self._hang_up()  # else the next to ask would get this answer
                raise

    def cut(self) -> None:
        """Nothing more comes from the broker; there may be another one soon."""
        self.running = None
        self._hang_up()

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    async def _connected(self) -> RawClient:
        if self._client is None or self._client.is_lost:
            if self.running is None:
                raise ConnectionRefusedError("no broker runs")
            self._client = await self.running.client(self.name)
            self._client.patience = 1.0
        return self._client
