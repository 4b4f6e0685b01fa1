"""Reads partitions from given offsets on; nobody else is told, and no group is joined.

`poll` gives the records of one round of Fetch as columns. Control batches are passed over; records
of transactions that were not committed are shown like any other (read_uncommitted).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from onceflow.client.cluster import Cluster, check
from onceflow.client.errors import BrokerError
from onceflow.client.model import TopicPartition
from onceflow.client.offsets import by_topic, offset_ranges
from onceflow.records.batch import iter_stored
from onceflow.records.columns import decode
from onceflow.wire.api import ApiKey

MAX_BYTES: Final = 16 << 20
MAX_PARTITION_BYTES: Final = 1 << 20


class Fetched(NamedTuple):
    """Records of one partition (columns of `RECORD_SCHEMA`), all at or after the asked offset."""

    partition: TopicPartition
    records: pa.RecordBatch


class SimpleConsumer:
    """`positions` are the offsets that will be read next."""

    def __init__(self, cluster: Cluster, positions: Mapping[TopicPartition, int]) -> None:
        self._cluster = cluster
        self.positions = dict(positions)
        self.high_watermarks: dict[TopicPartition, int] = {}

    async def poll(self, max_wait_s: float) -> list[Fetched]:
        """What has come within `max_wait_s`; nothing of what it returns is returned again."""

        async def attempt() -> list[Any]:
            leaders = await self._cluster.by_leader(self.positions)
            parts = await asyncio.gather(
                *(self._ask(leader, led, max_wait_s) for leader, led in leaders.items())
            )
            return [each for part in parts for each in part]

        fetched = []
        for partition, answer in await self._cluster.retrying(attempt):
            self.high_watermarks[partition] = answer.high_watermark
            records = self._take(partition, answer.records)
            if records is not None:
                fetched.append(Fetched(partition, records))
        return fetched

    async def _ask(
        self, leader: int, partitions: list[TopicPartition], max_wait_s: float
    ) -> list[tuple[TopicPartition, Any]]:
        from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic

        topics = tuple(
            FetchTopic(
                topic=topic,
                partitions=tuple(
                    FetchPartition(
                        partition=number,
                        fetch_offset=self.positions[TopicPartition(topic, number)],
                        partition_max_bytes=MAX_PARTITION_BYTES,
                    )
                    for number in numbers
                ),
            )
            for topic, numbers in by_topic(partitions).items()
        )
        request = FetchRequest(
            max_wait=timedelta(seconds=max_wait_s),
            min_bytes=1,
            max_bytes=MAX_BYTES,
            topics=topics,
            forgotten_topics_data=(),
        )
        connection = await self._cluster.broker(leader)
        answer = await connection.request(ApiKey.FETCH, request)
        check(ApiKey.FETCH, answer, f"broker {leader}")
        found = []
        for topic in answer.responses:
            for each in topic.partitions:
                partition = TopicPartition(topic.topic, each.partition_index)
                await self._check_partition(partition, each)
                found.append((partition, each))
        return found

    async def _check_partition(self, partition: TopicPartition, answer: Any) -> None:
        try:
            check(ApiKey.FETCH, answer, f"partition {partition}")
        except BrokerError as error:
            if error.name != "OFFSET_OUT_OF_RANGE":
                raise
            held = (await offset_ranges(self._cluster, [partition]))[partition]
            raise BrokerError(
                answer.error_code,
                ApiKey.FETCH.name,
                f"partition {partition}",
                f"there is no offset {self.positions[partition]}; it holds the offsets from "
                f"{held.earliest} up to {held.latest}",
            ) from error

    def _take(self, partition: TopicPartition, data: bytes | None) -> pa.RecordBatch | None:
        batches = list(iter_stored(data)) if data else []
        if not batches:
            return None
        position = self.positions[partition]
        self.positions[partition] = max(position, batches[-1].header.next_offset)
        records = decode(batches)
        if batches[0].header.base_offset < position:  # a batch is sent whole
            offsets: list[Any] = records.column("offset").to_pylist()
            records = records.slice(sum(offset < position for offset in offsets))
        return records if records.num_rows else None
