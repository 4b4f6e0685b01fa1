"""The log store in a simulated world: clients in one loop, power cuts, and runs that repeat."""

from __future__ import annotations

import asyncio
import random

from onceflow.log.journal.journal import Ticket
from onceflow.log.partition_log import PartitionLog
from onceflow.log.store import LogStore
from onceflow.runtime.background import Inline
from onceflow.testing.crash import crash_images
from onceflow.testing.world import World, run
from onceflow.types import LogId
from tests.sim.log.workload import NOW_MS, config, make_batch, read_all

SEEDS = 25
CLIENTS = 3
APPENDS = 12


async def durable(ticket: Ticket) -> None:
    done = asyncio.get_running_loop().create_future()
    ticket.add_done_callback(
        lambda error: done.set_result(None) if error is None else done.set_exception(error)
    )
    await done


async def client(world: World, store: LogStore, log: PartitionLog, number: int) -> bytes:
    """Appends with pauses; what was acknowledged, in order."""
    rand = random.Random(world.rand.fork(f"client {number}").randrange(1 << 30))
    acked = b""
    for _ in range(APPENDS):
        batch = make_batch(rand, NOW_MS).assign(log.end_offset, 0)
        await durable(store.append(log, batch))
        acked += bytes(batch.buffer)
        await asyncio.sleep(rand.random() / 100)
    return acked


async def main(world: World) -> list[tuple[bytes, bytes]]:
    """For each partition what was acknowledged, and what a power cut at the end leaves of it."""
    store = LogStore.open(world.disk, world.background, world.rand, config())
    log_ids = [LogId(world.rand.uuid4(), number) for number in range(CLIENTS)]
    await durable(store.create("orders", log_ids))
    clients = (client(world, store, store.logs[each], each.partition) for each in log_ids)
    acked = await asyncio.gather(*clients)
    images = crash_images(world.disk, seed=1, subsets=0, first=len(world.disk.ops))
    image = next(each for each in images if each.kind == "nothing unsynced")
    recovered = LogStore.open(image.disk, Inline(), world.rand, config())
    found = [read_all(recovered.logs[each]) for each in log_ids]
    return list(zip(acked, found, strict=True))


def test_equal_seeds_give_equal_traces_and_acknowledged_batches_survive() -> None:
    hashes = set()
    for seed in range(SEEDS):
        result, trace = run(seed, main)
        assert (result, trace) == run(seed, main), f"seed {seed} did not repeat"
        for acked, found in result:
            assert acked
            assert found == acked
        hashes.add(trace)
    assert len(hashes) == SEEDS
