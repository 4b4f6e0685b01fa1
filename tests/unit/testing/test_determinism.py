"""Equal seeds, equal traces: in one process, across processes and hash seeds."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from onceflow.testing.world import World, run

WORKLOAD = Path(__file__).with_name("echo_workload.py")
SEEDS = 40


def load_workload() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sim_echo_workload", WORKLOAD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


workload = load_workload()


def test_each_seed_gives_one_trace_and_seeds_differ() -> None:
    hashes: set[str] = set()
    served: set[tuple[bytes, ...]] = set()
    failures: set[str] = set()
    for seed in range(SEEDS):
        first, first_hash = run(seed, workload.main, faults=workload.FAULTS)
        second, second_hash = run(seed, workload.main, faults=workload.FAULTS)
        assert (first, first_hash) == (second, second_hash), f"seed {seed} did not repeat"
        asked = workload.CLIENTS * workload.REQUESTS
        assert sorted(set(first.answered)) == sorted(first.answered), "answered once each"
        assert len(first.answered) == asked, "every request is answered in the end"
        assert set(first.answered) == set(first.served), "an answer is to a request served"
        assert len(first.served) > asked, "some of client 1's requests come twice"
        hashes.add(first_hash)
        served.add(tuple(first.served))
        failures.update(first.failures)
    assert len(hashes) == SEEDS
    assert len(served) == SEEDS, "the server saw as many orders as there were seeds"
    assert failures >= {"ConnectionRefusedError", "ConnectionResetError", "TimeoutError"}


def test_the_trace_tells_on_a_program_that_takes_from_outside() -> None:
    async def main(world: World) -> None:
        await world.net.host("b").listen("b", 1, asyncio.Protocol)
        transport, _ = await world.net.host("a").connect("b", 1, asyncio.Protocol)
        transport.write(os.urandom(16))

    assert run(1, main)[1] != run(1, main)[1]


def hashes_of_a_process(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, str(WORKLOAD), "10"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_other_processes_with_other_hash_seeds_give_the_same_traces() -> None:
    here = "".join(run(seed, workload.main, faults=workload.FAULTS)[1] + "\n" for seed in range(10))
    assert hashes_of_a_process("0") == here
    assert hashes_of_a_process("12345") == here
    assert hashes_of_a_process("random") == here
