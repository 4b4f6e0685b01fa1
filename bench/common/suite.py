"""How a bench against Apache Kafka is run: interleaved, in one run on one machine.

All brokers run from the start, warmed up alike, and one at a time is under load; the order of their
turns is reversed from round to round. Raw numbers go to bench/results as JSON, a chart as SVG
(`-partial` in the name for a run that is quick or lacks something). A turn that fails is reported
and makes the bench end with status 1; a number that misses its goal, or that is not what it was
when figures were last kept (`--keep`, see `bench.common.figures`), is only said to. A bench that is
interrupted leaves the numbers that it has.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple

import confluent_kafka
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.common.chart import draw
from bench.common.figures import (
    KEEP_ROUNDS,
    DirtyTree,
    Verdict,
    find_changes,
    make_figure,
    make_kept,
    measured_commit,
    other_machine,
    read_kept,
    show_changes,
    write_kept,
)
from bench.common.report import Catalogue, Finding, find, show_findings, show_numbers
from bench.common.targets import TARGETS, BenchError, Target, java_command, make_target
from bench.common.turn import Measure, S, Turn, have_memory
from onceflow import __version__
from tools.kafka_jars import KAFKA_VERSION, ROOT, ensure_kafka_jars

ROUNDS: Final = 3
QUIET: Final = 0.1
# A real disk, as /tmp need not be, and nothing that could be taken for a part of the project.
SCRATCH: Final = ROOT / ".cache"
RESULTS: Final = ROOT / "bench" / "results"


class Suite(NamedTuple, Generic[S]):
    """One bench."""

    name: str
    """Of its results, too."""
    about: str
    catalogue: Catalogue
    measures: Sequence[Measure[S]]
    warm_up: Callable[[Turn[S]], None]
    full: S
    quick: S
    targets: Sequence[str] = TARGETS
    rounds: int = ROUNDS


@dataclass(frozen=True, slots=True)
class Failure:
    measure: str
    target: str
    round: int
    message: str


@dataclass(slots=True)
class Outcome:
    """What the rounds gave so far."""

    samples: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    turns: list[dict[str, str | float]] = field(default_factory=list)

    def add(self, turn: Turn[S], values: dict[str, float]) -> None:
        for name, value in values.items():
            rounds = self.samples.setdefault(name, {}).setdefault(turn.target.name, [])
            # A turn that failed left no value: its place stays empty, so that rounds stay rounds.
            rounds += [None] * (turn.round - len(rounds))
            rounds.append(value)


def machine() -> dict[str, Any]:
    java = [*java_command(ensure_kafka_jars())[:1], "-version"]
    said = subprocess.run(java, capture_output=True, text=True, check=True).stderr
    return {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "java": said.splitlines()[0],
        "onceflow": __version__,
        "apache_kafka": KAFKA_VERSION,
        "confluent_kafka": confluent_kafka.__version__,
        "librdkafka": confluent_kafka.libversion()[0],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def busy_share(seconds: float = 1.0) -> float:
    """The share of all cores that other work takes, seen before any broker runs."""

    def idle_ticks() -> int:
        fields = Path("/proc/stat").read_text().split(maxsplit=6)
        return int(fields[4]) + int(fields[5])  # idle, and waiting for a disk

    begin, before = time.perf_counter(), idle_ticks()
    time.sleep(seconds)
    passed = (time.perf_counter() - begin) * (os.cpu_count() or 1)
    return max(0.0, 1 - (idle_ticks() - before) / os.sysconf("SC_CLK_TCK") / passed)


def turns(
    measures: Sequence[Measure[S]], targets: Sequence[Target], rounds: int
) -> Iterator[tuple[Measure[S], int, Target]]:
    """Each round goes the other way than the one before."""
    for measure in measures:
        taking = [target for target in targets if target.name in measure.targets]
        for round_number in range(rounds):
            order = taking if round_number % 2 == 0 else reversed(taking)
            yield from ((measure, round_number, target) for target in order)


def run(
    suite: Suite[S],
    arguments: argparse.Namespace,
    measures: Sequence[Measure[S]],
    console: Console,
    outcome: Outcome,
) -> None:
    SCRATCH.mkdir(exist_ok=True)
    scale = suite.quick if arguments.quick else suite.full
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn())
    with ExitStack() as stack:
        scratch = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=SCRATCH))
        )
        progress = stack.enter_context(Progress(*columns, TimeElapsedColumn(), console=console))
        targets = [make_target(name, scratch / name) for name in arguments.targets]
        planned = list(turns(measures, targets, arguments.rounds))
        task = progress.add_task("", total=len(targets) + len(planned))
        for target in targets:
            progress.update(task, description=f"start and warm up {target.name}")
            stack.callback(target.stop)
            target.start()
            suite.warm_up(Turn(target, 0, scale, scratch))
            progress.advance(task)
        for measure, round_number, target in planned:
            description = f"{measure.name}, round {round_number + 1}, {target.name}"
            progress.update(task, description=description)
            take(outcome, measure, Turn(target, round_number, scale, scratch))
            progress.advance(task)


def take(outcome: Outcome, measure: Measure[S], turn: Turn[S]) -> None:
    os.sync()
    have_memory(turn.scratch)
    load_average, begin = os.getloadavg()[0], time.perf_counter()
    try:
        outcome.add(turn, measure.run(turn))
    except (BenchError, OSError, confluent_kafka.KafkaException) as error:
        failure = Failure(measure.name, turn.target.name, turn.round, str(error))
        outcome.failures.append(failure)
    outcome.turns.append(
        {
            "measure": measure.name,
            "target": turn.target.name,
            "round": turn.round,
            "load_average": load_average,
            "seconds": round(time.perf_counter() - begin, 2),
        }
    )


def as_json(finding: Finding) -> dict[str, Any]:
    comparison = finding.comparison
    return {
        "metric": comparison.metric,
        "ours": comparison.ours,
        "theirs": comparison.theirs or None,
        **finding.spread._asdict(),
        "goal": comparison.goal.limit if comparison.goal else None,
        "reached": finding.reached,
    }


def write_results(
    stem: str,
    catalogue: Catalogue,
    arguments: argparse.Namespace,
    facts: dict[str, Any],
    outcome: Outcome,
) -> list[Finding]:
    """Writes the raw numbers and the chart."""
    findings = find(catalogue, outcome.samples)
    results = {
        "machine": facts,
        "rounds": arguments.rounds,
        "quick": arguments.quick,
        "turns": outcome.turns,
        "metrics": {
            name: {"unit": catalogue.metrics[name].unit, "samples": samples}
            for name, samples in outcome.samples.items()
        },
        "comparisons": [as_json(finding) for finding in findings],
        "failures": [asdict(failure) for failure in outcome.failures],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{stem}.json").write_text(json.dumps(results, indent=1))
    if drawn := draw(catalogue, findings, facts):
        (RESULTS / f"{stem}.svg").write_text(drawn, encoding="utf-8")
    return findings


def tell(
    console: Console,
    catalogue: Catalogue,
    arguments: argparse.Namespace,
    outcome: Outcome,
    findings: Sequence[Finding],
) -> None:
    show_numbers(console, catalogue, outcome.samples, arguments.targets)
    show_findings(console, catalogue, findings)
    if arguments.quick:
        console.print(
            "[yellow]A quick run shows that all of it works. Its numbers mean nothing:[/] "
            "the JVMs are cold, which makes Apache Kafka look slower than it is."
        )
    for failure in outcome.failures:
        console.print(
            f"[red]failed:[/] {failure.measure}, round {failure.round + 1}, {failure.target}: "
            f"{escape(failure.message)}",
            highlight=False,
        )


def parse(suite: Suite[S]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m bench.{suite.name}", description=suite.about)
    names = ", ".join(measure.name for measure in suite.measures)
    targets = ",".join(suite.targets)
    parser.add_argument("--quick", action="store_true", help="a smoke run: little load, one round")
    parser.add_argument("--only", default="", help=f"beginnings of names, of {names}")
    parser.add_argument("--rounds", type=int, help=f"{suite.rounds}, or 1 when quick")
    parser.add_argument("--targets", default=targets, help=f"of {', '.join(TARGETS)}")
    parser.add_argument(
        "--keep",
        action="store_true",
        help=f"of a whole run, at least {KEEP_ROUNDS} rounds: the figures to compare with from now",
    )
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or usual_rounds(suite, arguments)
    arguments.targets = arguments.targets.split(",")
    if wrong := [name for name in arguments.targets if name not in TARGETS]:
        parser.error(f"no target is called {wrong[0]!r}: there are {', '.join(TARGETS)}")
    if arguments.keep and arguments.rounds < KEEP_ROUNDS:
        parser.error(f"figures are kept of {KEEP_ROUNDS} rounds at least")
    if arguments.keep and not asks_for_all(suite, arguments):
        parser.error("figures are kept of a whole run: without --quick, --only and --targets")
    return arguments


def usual_rounds(suite: Suite[S], arguments: argparse.Namespace) -> int:
    if arguments.quick:
        return 1
    return max(suite.rounds, KEEP_ROUNDS) if arguments.keep else suite.rounds


def asks_for_all(suite: Suite[S], arguments: argparse.Namespace) -> bool:
    return (
        not arguments.quick and not arguments.only and set(arguments.targets) >= set(suite.targets)
    )


def commit_to_keep(arguments: argparse.Namespace) -> str:
    """Asked before anything is measured, and empty unless figures are to be kept."""
    try:
        return measured_commit() if arguments.keep else ""
    except (DirtyTree, OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(str(error)) from error


def tell_changes(
    console: Console,
    suite: Suite[S],
    facts: dict[str, Any],
    findings: Sequence[Finding],
    is_whole: bool,
) -> None:
    kept = read_kept(suite.name)
    if kept is None:
        console.print("No figures are kept to compare with.")
        return
    now = [make_figure(suite.catalogue, finding) for finding in findings]
    changes = find_changes(kept.figures, now)
    # What was not asked for is not missing; a turn that failed has been reported.
    wanted = [each for each in changes if is_whole or each.verdict is not Verdict.MISSING]
    show_changes(console, kept, wanted)
    if differs := other_machine(kept, facts):
        console.print(f"[yellow]Kept on another machine:[/] {differs}.", highlight=False)


def keep(
    suite: Suite[S],
    arguments: argparse.Namespace,
    facts: dict[str, Any],
    findings: Sequence[Finding],
    commit: str,
) -> str:
    """Writes the kept figures; what to tell about it."""
    command = " ".join(("python", "-m", f"bench.{suite.name}", *sys.argv[1:]))
    kept = make_kept(
        suite.name,
        suite.catalogue,
        findings,
        facts,
        commit=commit,
        command=command,
        rounds=arguments.rounds,
    )
    target = write_kept(kept).relative_to(ROOT)
    return f"Kept: {target}. Now `python -m bench.write_docs` says so in docs/PERFORMANCE.md."


def main(suite: Suite[S]) -> None:
    """Runs the bench as its command line says, and ends the process."""
    # Asked to end, it stops the brokers, removes their data and keeps the numbers it has.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = parse(suite)
    console = Console()
    wanted = tuple(arguments.only.split(","))
    measures = [measure for measure in suite.measures if measure.name.startswith(wanted)]
    if not measures:
        raise SystemExit(f"no measure begins with {' or '.join(wanted)}")
    # The brokers inherit it; 500 idle connections are more than some shells allow.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    commit = commit_to_keep(arguments)
    facts = {**machine(), "busy_before": round(busy_share(), 3)}
    if facts["busy_before"] > QUIET:
        console.print(
            f"[yellow]Other work takes {facts['busy_before']:.0%} of this machine:[/] "
            "expect wide spreads."
        )
    outcome = Outcome()
    was_interrupted = False
    try:
        run(suite, arguments, measures, console, outcome)
    except BenchError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        was_interrupted = True
    is_whole = not (was_interrupted or outcome.failures) and asks_for_all(suite, arguments)
    stem = suite.name if is_whole else f"{suite.name}-partial"
    findings = write_results(stem, suite.catalogue, arguments, facts, outcome)
    tell(console, suite.catalogue, arguments, outcome, findings)
    if not arguments.quick:
        tell_changes(console, suite, facts, findings, is_whole)
    if commit:
        said = keep(suite, arguments, facts, findings, commit) if is_whole else "Nothing is kept."
        console.print(said, highlight=False)
    console.print(f"Raw numbers and chart: {RESULTS / stem}.*")
    sys.exit(1 if outcome.failures or was_interrupted else 0)
