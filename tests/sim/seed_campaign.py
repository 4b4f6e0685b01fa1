"""Lives through one world after the other, seed by seed, until a promise is broken."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from typing import TypeVar

from tests.sim.txn.history import PromiseBroken

S = TypeVar("S")


def try_seeds(
    about: str, shape_of: Callable[[int], S], live: Callable[[int, S], tuple[object, str]]
) -> None:
    """`live` tells of the world of a seed and a shape, and gives the hash of its trace."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.getLogger("onceflow").setLevel(logging.CRITICAL)
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        shape = shape_of(seed)
        try:
            told, trace = live(seed, shape)
        except PromiseBroken as error:
            sys.exit(f"BROKEN: seed {seed}, {shape}, {error}")
        print(f"seed {seed}, {shape}: {told} (trace {trace[:8]})", flush=True)
