"""`make crash`: power cuts at every op of many seeded workloads, for as long as it is given.

    python -m tests.sim.log.campaign [--seconds 600] [--first-seed 1000]

Prints one line a seed; ends with status 1 at the first broken promise, naming seed, boundary and
image, which `LogWorkload(seed, ...)` and `crash_images(..., seed=seed)` bring back.
"""

from __future__ import annotations

import argparse
import sys
import time

from onceflow.log.checkpoint import Durability
from onceflow.testing.crash import crash_images
from tests.sim.log.judge import check_image
from tests.sim.log.workload import LogWorkload, PromiseBroken

STEPS = 120
SUBSETS = 4


def check_seed(seed: int) -> int:
    """Every image of one workload; how many there were. Every fourth seed runs without syncs, every
    second one compacts."""
    durability = Durability.OS if seed % 4 == 3 else Durability.FSYNC
    compacting = seed % 8 in (1, 2, 3, 6)
    workload = LogWorkload(seed, STEPS, durability=durability, compacting=compacting)
    count = 0
    for image in crash_images(workload.disk, seed=seed, subsets=SUBSETS):
        check_image(image, workload)
        count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description="A campaign of simulated power cuts.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first-seed", type=int, default=1000)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    seed, total = arguments.first_seed, 0
    while time.monotonic() < end:
        try:
            images = check_seed(seed)
        except PromiseBroken as error:
            sys.exit(f"BROKEN: {error}")
        total += images
        print(f"seed {seed}: {images} images, nothing broken", flush=True)
        seed += 1
    print(f"{total} images of {seed - arguments.first_seed} workloads: nothing broken")


if __name__ == "__main__":
    main()
