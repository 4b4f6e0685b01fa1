"""`make soak`: an hour of mixed load on a broker, which must take no more at its end than before.

    python -m tests.soak.run [--minutes 60] [--durability fsync|os] [--seed 1] [--quick]

Prints a line every ten seconds or so, then what was done, what every series did in the second half
of the run, and a verdict. Ends with status 1 when anything grows, or when a record is lost,
doubled, or shown though it was aborted. `--quick` lets everything turn over in seconds, for a run
of a minute or two.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.soak.flatness import Bound, Trend
from tests.soak.samples import LOOKED_AT, Sample
from tests.soak.scale import HOUR, MINUTE, Scale
from tests.soak.soak import Outcome, soak, trends

LINE_SECONDS = 10.0
TOLD = 12
"""Of the many tables, those that came nearest to their bound."""


def line_by_line(every_s: float) -> Callable[[Sample], None]:
    """Prints some of the samples."""
    last = [0.0, 0.0]

    def tell(sample: Sample) -> None:
        if sample.at - last[0] >= every_s:
            cores = (sample.cpu_s - last[1]) / (sample.at - last[0])
            last[:] = sample.at, sample.cpu_s
            values = "  ".join(f"{name} {sample.values[name]:.1f}" for name in LOOKED_AT)
            print(f"{sample.at:7.0f} s  cores {cores:.2f}  {values}", flush=True)

    return tell


def nearness(found: Trend, bound: Bound) -> float:
    """How much of what it may grow it has grown; above 1 is too much."""
    return found.growth / max(bound.allowed(found.third), 0.5)


def report(outcome: Outcome, scale: Scale) -> str:
    found = trends(outcome)
    ranked = sorted(found, key=lambda name: -nearness(found[name], scale.bound_of(name)))
    told = dict.fromkeys([*LOOKED_AT, *outcome.growing, *ranked[:TOLD]])
    lines = [f"{count:9d}  {what}" for what, count in sorted(outcome.counts.items())]
    lines += ["", "   third     fourth     an hour   of its bound"]
    for name in told:
        each = found[name]
        share = nearness(each, scale.bound_of(name))
        grows = "  GROWS" if name in outcome.growing else ""
        lines.append(
            f"{each.third:9.1f}  {each.fourth:9.1f}  {each.slope * 3600:+10.1f}  {share:+6.2f}  "
            f"{name}{grows}"
        )
    lines += ["", *(f"PROBLEM: {each}" for each in outcome.problems)]
    return "\n".join(lines)


def verdict(outcome: Outcome) -> str:
    if outcome.is_good:
        return "flat, and each record once"
    return (
        f"{len(outcome.growing)} series grow: {', '.join(outcome.growing) or 'none'}; "
        f"{len(outcome.problems)} problems with records"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A long run of mixed load.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--durability", choices=("fsync", "os"), default="fsync")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    scale = MINUTE if arguments.quick else HOUR
    with tempfile.TemporaryDirectory(prefix="onceflow-soak-") as directory:
        outcome = soak(
            Path(directory),
            arguments.minutes * 60,
            scale,
            durability=arguments.durability,
            seed=arguments.seed,
            tell=line_by_line(LINE_SECONDS),
        )
    print(report(outcome, scale))
    print(verdict(outcome))
    if not outcome.is_good:
        print("The broker's last words:", *outcome.log[-30:], sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
