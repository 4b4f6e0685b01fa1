"""Reads partitions from given offsets on; nobody else is told, and no group is joined.

`poll` gives the records of one round of Fetch as columns; between two polls nothing happens.
Control batches are passed over; records of transactions that were not committed are shown like any
other, unless `read_committed` is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from onceflow.client.cluster import Cluster
from onceflow.client.fetch_request import fetch, is_out_of_range, out_of_range, refusal
from onceflow.client.fetch_wire import FetchAnswer
from onceflow.client.isolation import PartitionFilter
from onceflow.client.model import TopicPartition
from onceflow.client.settings import ISOLATION_LEVELS, ReaderSettings
from onceflow.records.batch import iter_stored
from onceflow.records.columns import decode

MAX_BYTES: Final = 16 << 20


class Fetched(NamedTuple):
    """Records of one partition (columns of `RECORD_SCHEMA`), all at or after the asked offset."""

    partition: TopicPartition
    records: pa.RecordBatch


class SimpleConsumer:
    """`positions` are the offsets that will be read next."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
    ) -> None:
        self._cluster = cluster
        self._settings = ReaderSettings(
            fetch_max_bytes=MAX_BYTES, isolation_level=ISOLATION_LEVELS[read_committed]
        )
        self.positions = dict(positions)
        self.high_watermarks: dict[TopicPartition, int] = {}

    async def poll(self, max_wait_s: float) -> list[Fetched]:
        """What has come within `max_wait_s`; nothing of what it returns is returned again."""

        async def attempt() -> list[FetchAnswer]:
            leaders = await self._cluster.by_leader(self.positions)
            parts = await asyncio.gather(
                *(self._ask(leader, led, max_wait_s) for leader, led in leaders.items())
            )
            return [each for part in parts for each in part]

        fetched = []
        for answer in await self._cluster.retrying(attempt):
            self.high_watermarks[answer.partition] = answer.high_watermark
            records = self._take(answer)
            if records is not None:
                fetched.append(Fetched(answer.partition, records))
        return fetched

    async def _ask(
        self, leader: int, partitions: list[TopicPartition], max_wait_s: float
    ) -> list[FetchAnswer]:
        answers = await fetch(
            self._cluster,
            leader,
            [(each, self.positions[each]) for each in partitions],
            replace(self._settings, fetch_max_wait_ms=int(1000 * max_wait_s)),
        )
        for answer in answers:
            partition = answer.partition
            if is_out_of_range(answer):
                raise await out_of_range(self._cluster, partition, self.positions[partition])
            if answer.error:
                raise refusal(answer)
        return answers

    def _take(self, answer: FetchAnswer) -> pa.RecordBatch | None:
        position = self.positions[answer.partition]
        reader = PartitionFilter(position, read_committed=self._settings.read_committed)
        reader.begin(answer.aborted)
        batches = list(reader.visible(iter_stored(answer.records)))
        self.positions[answer.partition] = reader.position
        if not batches:
            return None
        records = decode(batches)
        if batches[0].header.base_offset < position:  # a batch is sent whole
            offsets: list[Any] = records.column("offset").to_pylist()
            records = records.slice(sum(offset < position for offset in offsets))
        return records if records.num_rows else None
