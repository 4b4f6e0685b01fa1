"""Who else is there: a producer without transactions that sends batches twice, and a reader."""

from __future__ import annotations

import asyncio

from onceflow.testing.world import World
from onceflow.wire.api import ApiKey
from tests.sim.txn.client import (
    AGAIN,
    INIT,
    PLACES,
    PRODUCE,
    TIMEOUT_MS,
    Caller,
    Requests,
    make_batch,
)
from tests.sim.txn.history import (
    OLD,
    History,
    Identity,
    Initialised,
    Place,
    PromiseBroken,
    Sent,
    Shown,
)


class Idempotent:
    """A producer without transactions that sends batches more than once."""

    def __init__(self, world: World, history: History) -> None:
        self._history = history
        self._rand = world.rand.fork("idempotent")
        self.caller = Caller("idempotent", self._rand, history.failures)
        self._identity: Identity | None = None
        self._sequences: dict[Place, int] = {}

    async def run(self, batches: int) -> None:
        if self._identity is None:
            asked = self._history.now
            fields = Requests.init(None, TIMEOUT_MS, None)
            (answer,) = await self.caller.ask(ApiKey.INIT_PRODUCER_ID, INIT, fields)
            identity = Identity(answer["producer_id"], answer["producer_epoch"])
            self._identity = identity
            # The topics were made before, and one order holds for all.
            self._history.made = self._history.now
            self._history.inits.append(
                Initialised(None, TIMEOUT_MS, None, identity, asked, self._history.now)
            )
        for _ in range(batches):
            await self._send(self._identity)
            await asyncio.sleep(self._rand.uniform(0, 0.05))

    async def _send(self, identity: Identity) -> None:
        place = PLACES[self._rand.randrange(len(PLACES))]
        number = len(self._history.plain)
        values = (b"plain/%d/%s" % (number, b"." * self._rand.randrange(300)),)
        sequence = self._sequences.get(place, 0)
        data = make_batch(identity, sequence, values, transactional=False)
        sent = Sent(place, sequence, values, data, self._history.now)
        self._history.plain.append(sent)
        fields = Requests.produce(None, [(place, data)])
        times = 1 + self._rand.randrange(2)  # the repeat follows while the first is on its way
        while True:
            answers = await self.caller.ask(ApiKey.PRODUCE, PRODUCE[OLD], *[fields] * times)
            rows = [answer["responses"][0]["partition_responses"][0] for answer in answers]
            if not any(row["error_code"] in AGAIN for row in rows):
                break
            await asyncio.sleep(self._rand.uniform(0.005, 0.05))
        found = {(row["error_code"], row["base_offset"]) for row in rows}
        if len(found) != 1 or rows[0]["error_code"] != "NONE":
            raise PromiseBroken(f"a batch and its repeat were answered with {found}")
        sent.offset, sent.acked_at = rows[0]["base_offset"], self._history.now
        self._sequences[place] = sequence + len(values)


class Reader:
    """Notes up to where partitions could be read."""

    def __init__(self, world: World, history: History) -> None:
        self._history = history
        self._rand = world.rand.fork("reader")
        self.caller = Caller("reader", self._rand, history.failures)
        self._last: dict[Place, tuple[int, int]] = {}

    async def run(self) -> None:
        while True:
            place = PLACES[self._rand.randrange(len(PLACES))]
            part = {
                "partition": place.partition,
                "fetch_offset": 0,
                "partition_max_bytes": 1,
                "current_leader_epoch": -1,
            }
            topics = [{"topic": place.topic, "partitions": [part]}]
            fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1}
            (answer,) = await self.caller.ask(ApiKey.FETCH, 12, {**fields, "topics": topics})
            row = answer["responses"][0]["partitions"][0]
            ends = row["high_watermark"], row["last_stable_offset"]
            if self._last.get(place) != ends:
                self._last[place] = ends
                self._history.shown.append(Shown(self._history.now, place, *ends))
            await asyncio.sleep(self._rand.uniform(0.01, 0.1))
