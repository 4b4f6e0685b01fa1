"""What can happen to a query: to its driver, to its tasks, to the brokers; and where."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from onceflow.client.admin.admin import Admin
from tests.interop.harness import eventually
from tests.spark.kills.brokers import Brokers, Role
from tests.spark.kills.driver import Driver
from tests.spark.kills.fate import FAIL, GO_ON, Act, Arrival
from tests.spark.kills.world import World
from tests.spark.sink.hooks import DRIVER_POINTS, TASK_POINTS, UNANSWERED, DropShuffle

ALL_POINTS: Final = (*TASK_POINTS, *DRIVER_POINTS[:2], UNANSWERED, DRIVER_POINTS[2])
"""In the order in which a batch comes to them."""
_TIMEOUT_PATIENCE_S: Final = 180.0


class Fault(Enum):
    """What happens."""

    DRIVER = "kill -9 of the driver"
    JVM = "kill -9 of the driver's JVM"
    ZOMBIE = "the driver stands still, another one takes over, it wakes up"
    WORKER = "kill -9 of a Python worker"
    EXECUTOR = "kill -9 of an executor's JVM"
    TASK = "a task fails"
    STAGE = "rows between two stages are lost"
    PAUSE = "a pause longer than the transaction"
    BROKER = "kill -9 of the broker"
    LEADER = "kill -9 of a partition's leader"
    COORDINATOR = "kill -9 of the transaction's coordinator"
    GROUP = "kill -9 of the group's coordinator"


POINTS: Final[Mapping[Fault, tuple[str, ...]]] = {
    Fault.DRIVER: ALL_POINTS,
    Fault.JVM: ALL_POINTS,
    Fault.ZOMBIE: ALL_POINTS,
    Fault.WORKER: TASK_POINTS,
    Fault.EXECUTOR: TASK_POINTS,
    Fault.TASK: TASK_POINTS,
    # All tasks that read have to be under way, or done, or nothing is lost yet.
    Fault.STAGE: ("after write",),
    # Only there a transaction is open for sure: a task may have had nothing to write.
    Fault.PAUSE: ("before offsets", "before EndTxn"),
    Fault.BROKER: ALL_POINTS,
    Fault.LEADER: ALL_POINTS,
    Fault.COORDINATOR: ALL_POINTS,
    Fault.GROUP: ("before offsets", "before EndTxn", UNANSWERED),
}
ROLES: Final = {
    Fault.BROKER: Role.ANY,
    Fault.LEADER: Role.LEADER,
    Fault.COORDINATOR: Role.COORDINATOR,
    Fault.GROUP: Role.GROUP,
}
ENDS_DRIVER: Final = frozenset({Fault.DRIVER, Fault.JVM, Fault.ZOMBIE})
"""Another one has to go on."""


class Scene(NamedTuple):
    """Everything that a fault may have to do with."""

    world: World
    brokers: Brokers
    driver_of: Callable[[str], Driver]
    """By its name."""
    local_dir: Callable[[str], Path]
    """Where the driver of that name keeps rows between stages."""
    stopped: Callable[[Driver], None]
    """Is told that a driver stands still."""

    def act(self, fault: Fault) -> Act:
        """What the fate server does when the moment has come."""
        if fault in ROLES:
            return lambda arrival: self._brokers(ROLES[fault])
        acts: dict[Fault, Act] = {
            Fault.DRIVER: self._driver,
            Fault.JVM: self._jvm,
            Fault.ZOMBIE: self._zombie,
            Fault.WORKER: lambda arrival: _kill(arrival.pid),
            Fault.EXECUTOR: lambda arrival: _kill(arrival.grandparent),
            Fault.TASK: lambda arrival: FAIL,
            Fault.STAGE: self._stage,
            Fault.PAUSE: lambda arrival: self._pause(),
        }
        return acts[fault]

    def _driver(self, arrival: Arrival) -> str:
        self.driver_of(arrival.driver).kill_python()
        return GO_ON

    def _jvm(self, arrival: Arrival) -> str:
        self.driver_of(arrival.driver).kill_jvm()
        return GO_ON

    def _zombie(self, arrival: Arrival) -> str:
        driver = self.driver_of(arrival.driver)
        driver.stand_still()
        self.stopped(driver)
        return GO_ON

    def _stage(self, arrival: Arrival) -> str:
        DropShuffle(self.local_dir(arrival.driver))()
        return GO_ON

    def _brokers(self, role: Role) -> str:
        self.brokers.kill(role, self.world)
        return GO_ON

    def _pause(self) -> str:
        async def state() -> str:
            async with Admin(self.world.bootstrap) as admin:
                return (await admin.describe_transaction(self.world.name)).state

        eventually(
            lambda: asyncio.run(state()),
            lambda state: state != "Ongoing",
            seconds=_TIMEOUT_PATIENCE_S,
        )
        return GO_ON


def _kill(pid: int) -> str:
    # Whose parent is gone has init for one, and none above it.
    assert pid > 1, "who was to be killed is gone"
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return GO_ON
