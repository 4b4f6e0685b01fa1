"""Power cuts in workloads with transactions, for as long as it is given.

    python -m tests.sim.txn.campaign [--seconds 600] [--first-seed 1000]

Prints one line a seed; ends with status 1 at the first broken promise, naming seed, boundary and
image, which `workload(shape)` and `sampled_images(..., seed=seed)` bring back.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from onceflow.testing.crash import Image, sampled_images
from onceflow.testing.world import run
from tests.sim.txn.examine import Examiner, recovering
from tests.sim.txn.history import NEW, OLD, PromiseBroken
from tests.sim.txn.workload import FAULTS, Shape, workload

CLIENTS = (NEW, OLD, NEW, OLD)
ROUNDS = (3, 2, 2)
SHAPES = (
    Shape(CLIENTS, ROUNDS),
    Shape(CLIENTS, ROUNDS, journal_bytes=16 << 10, segment_bytes=1200),
    Shape(CLIENTS, ROUNDS, gathered_bytes=600),
    Shape(CLIENTS, ROUNDS, durability="os", segment_bytes=1200),
)
OTHERS = 2
NESTED_EVERY = 50
"""Of so many images of a first cut, one is recovered from with a second cut on the way."""


def check_seed(seed: int, end: float) -> Examiner:
    """The images of one workload, as many as there is time for."""
    shape = SHAPES[seed % len(SHAPES)]
    history, trace = run(seed, workload(shape), faults=FAULTS)
    if run(seed, workload(shape), faults=FAULTS)[1] != trace:
        raise PromiseBroken("the same seed gave another trace")
    examiner = Examiner(history, shape)
    for number, image in enumerate(sampled_images(history.disk, seed=seed, others=OTHERS)):
        if time.monotonic() > end:
            break
        if number % NESTED_EVERY == NESTED_EVERY - 1 and shape.durability == "fsync":
            _check_nested(examiner, image, seed)
        else:
            examiner.check(image)
    return examiner


def _check_nested(examiner: Examiner, first: Image, seed: int) -> None:
    disk = recovering(first, examiner.shape)
    for image in sampled_images(disk, seed=seed, others=1):
        kind = f"{first.kind}, then at {image.boundary} {image.kind}"
        examiner.check(Image(first.boundary, kind, image.disk), nested=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A campaign of power cuts in transactions.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first-seed", type=int, default=1000)
    arguments = parser.parse_args()
    logging.getLogger("onceflow").setLevel(logging.CRITICAL)
    end = time.monotonic() + arguments.seconds
    seed, images, brokers = arguments.first_seed, 0, 0
    while time.monotonic() < end:
        try:
            examiner = check_seed(seed, end)
        except PromiseBroken as error:
            sys.exit(f"BROKEN: seed {seed}: {error}")
        images += examiner.images
        brokers += examiner.brokers
        print(f"seed {seed}: {examiner.images} images, nothing broken", flush=True)
        seed += 1
    count = seed - arguments.first_seed
    print(f"{images} images ({brokers} of them distinct) of {count} workloads: nothing broken")


if __name__ == "__main__":
    main()
