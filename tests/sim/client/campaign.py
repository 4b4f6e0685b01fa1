"""Clients and a broker under every fault there is, seed after seed.

    python -m tests.sim.client.campaign [--seeds 300] [--first-seed 1000] [--shape all]

Every seed is run twice and must give the same trace. Prints one line a seed, and in the end how
often what happened; ends with status 1 when a promise was broken, naming shape and seed, which
`run(seed, workload(SHAPES[shape]))` brings back.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter

from onceflow.testing.loop import SimulationError
from onceflow.testing.world import run
from tests.sim.client.judge import judge
from tests.sim.client.workload import SHAPES, Result, Shape, workload
from tests.sim.txn.history import PromiseBroken


def check_seed(seed: int, shape: Shape) -> Result:
    """Raises `PromiseBroken`."""
    result, trace = play(seed, shape)
    judge(*result)
    again, second = play(seed, shape)
    if (result.history.told(), trace) != (again.history.told(), second):
        raise PromiseBroken("the same seed gave another trace")
    return result


def play(seed: int, shape: Shape) -> tuple[Result, str]:
    """What happens in one world, and the hash of its trace; what went wrong in one of its tasks is
    raised as what it is."""
    try:
        return run(seed, workload(shape))
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def numbers_of(result: Result) -> Counter[str]:
    """How often what happened."""
    found = Counter(result.history.events)
    for used in result.history.producers:
        found.update(f"record {each.outcome.name}" for each in used.records)
        found.update(f"transaction {each.end.name}" for each in used.attempts)
        found["producer fenced"] += used.fenced_at <= result.history.now
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="A campaign of clients under faults.")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--shape", choices=SHAPES, action="append")
    arguments = parser.parse_args()
    logging.getLogger("onceflow").setLevel(logging.CRITICAL)
    total: Counter[str] = Counter()
    broken = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for name in arguments.shape or SHAPES:
            try:
                total.update(numbers_of(check_seed(seed, SHAPES[name])))
            except (PromiseBroken, SimulationError) as error:
                broken.append(f"seed {seed} of {name!r}: {type(error).__name__}: {error}")
                print(f"BROKEN: {broken[-1]}", flush=True)
        print(f"seed {seed} done", flush=True)
    for event, count in sorted(total.items()):
        print(f"{count:8} {event}")
    if broken:
        sys.exit(f"{len(broken)} broken promises")


if __name__ == "__main__":
    main()
