"""`make kill`: the broker is killed under load many times, by every client, in both durabilities.

    python -m tests.kill.campaign [--kills 100] [--first-seed 1]

Prints one line for every run of some kills, and a summary. Ends with status 1 at the first run in
which anything acknowledged is lost or stored twice, and keeps nothing of those that went well.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys

from tests.kill.payment_clients import CLIENTS
from tests.kill.scenario import Kill, Outcome, kill_under_load

KILLS_PER_RUN = 10
WAYS = [(client, durability) for durability in ("fsync", "os") for client in CLIENTS]


def report(kills: list[Kill]) -> str:
    seconds = sorted(each.restart_seconds for each in kills)
    return f"restart median {statistics.median(seconds):.3f} s, longest {seconds[-1]:.3f} s"


def broken(outcome: Outcome) -> str:
    return f"BROKEN: {outcome.verdict}\nThe broker's log:\n{outcome.log_text}"


def main() -> None:
    parser = argparse.ArgumentParser(description="A campaign of kills under load.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=1)
    arguments = parser.parse_args()
    kills: list[Kill] = []
    acknowledged = 0
    for seed, (client, durability) in zip(
        itertools.count(arguments.first_seed), itertools.cycle(WAYS), strict=False
    ):
        wanted = min(KILLS_PER_RUN, arguments.kills - len(kills))
        if not wanted:
            break
        outcome = kill_under_load(client, durability, wanted, seed)
        if not outcome.verdict.is_good:
            sys.exit(broken(outcome))
        kills += outcome.kills
        acknowledged += outcome.verdict.acknowledged
        print(
            f"seed {seed}: {client.package}, {durability}: {wanted} kills, "
            f"{outcome.verdict.acknowledged} acknowledged, lost 0, twice 0, "
            f"{report(outcome.kills)}",
            flush=True,
        )
    print(
        f"{len(kills)} kills, {acknowledged} acknowledged, lost 0, stored twice 0, "
        f"out of order 0, {report(kills)}"
    )


if __name__ == "__main__":
    main()
