"""A simulated world for tests: the real broker and the real clients on an event loop with virtual
time, with a network and a disk that fail as a seed says.

    from onceflow.testing import SimBroker, SimProcess, World, run

    async def main(world: World) -> None:
        broker = SimBroker(world)
        await broker.start()
        app = SimProcess(world, "app")
        app.start(program(app))
        await asyncio.sleep(world.rand.uniform(0, 3))
        app.kill()

    run(7, main)

An hour of the world takes as long as what happens in it, and the same seed gives the same run, call
by call: a failure that was found once is found again. docs/TESTING_WITH_ONCEFLOW.md shows more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.testing.broker import SimBroker
    from onceflow.testing.clock import SimClock
    from onceflow.testing.connection import SimConnection, TappedWrite
    from onceflow.testing.crash import Image, crash_images, sampled_images
    from onceflow.testing.disk import SimDisk
    from onceflow.testing.faults import Deliver, Gate, Hold, NetFaults, Redeliver, Side
    from onceflow.testing.loop import (
        SimLoop,
        SimulationBudgetExceeded,
        SimulationCallbackFailed,
        SimulationDeadlock,
        SimulationError,
    )
    from onceflow.testing.net import SimNet
    from onceflow.testing.process import SimProcess
    from onceflow.testing.rand import SimRand
    from onceflow.testing.world import World, run
else:
    __getattr__ = door(
        __name__,
        {
            "broker": "SimBroker",
            "clock": "SimClock",
            "connection": "SimConnection TappedWrite",
            "crash": "Image crash_images sampled_images",
            "disk": "SimDisk",
            "faults": "Deliver Gate Hold NetFaults Redeliver Side",
            "loop": "SimLoop SimulationBudgetExceeded SimulationCallbackFailed SimulationDeadlock "
            "SimulationError",
            "net": "SimNet",
            "process": "SimProcess",
            "rand": "SimRand",
            "world": "World run",
        },
    )

__all__ = [
    "NetFaults",
    "SimBroker",
    "SimProcess",
    "World",
    "run",
    # What a world is made of.
    "SimClock",
    "SimConnection",
    "SimDisk",
    "SimLoop",
    "SimNet",
    "SimRand",
    # To see each write to the network, and to say what becomes of it.
    "Deliver",
    "Gate",
    "Hold",
    "Redeliver",
    "Side",
    "TappedWrite",
    # What a power cut can leave of a disk.
    "Image",
    "crash_images",
    "sampled_images",
    # What a run raises.
    "SimulationBudgetExceeded",
    "SimulationCallbackFailed",
    "SimulationDeadlock",
    "SimulationError",
]
