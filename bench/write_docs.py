"""Writes docs/PERFORMANCE.md from the kept figures, so that each has its commit and its date.

python -m bench.write_docs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from bench.common.figures import PAGE, Figure, Kept, read_all_kept, unit_of
from bench.common.report import number

FIRST: Final = "headlines"
MEASUREMENTS: Final = "internals/MEASUREMENTS.md"


class Bench(NamedTuple):
    """A bench that takes long, with a section of its own on the page of measurements."""

    name: str
    about: str

    @property
    def command(self) -> str:
        return f"python -m {self.name}"

    @property
    def section(self) -> str:
        """As GitHub makes anchors of headings."""
        return f"{MEASUREMENTS}#{self.name.replace('.', '')}"


BENCHES: Final = (
    Bench("bench.broker", "the broker against Apache Kafka"),
    Bench("bench.transactions", "transactions on both"),
    Bench("bench.ceiling", "what a client's timers leave to a broker"),
    Bench("bench.client", "the client against aiokafka and confluent-kafka"),
    Bench("bench.session", "sessions against the same loop by aiokafka"),
    Bench("bench.spark", "source and sink against Spark's own connector"),
    Bench("bench.flink", "pipelines on Spark against PyFlink"),
    Bench("bench.log", "the log against the plain way"),
    Bench("bench.records", "batches against other libraries"),
)
HEAD: Final = """# Performance

`python -m bench.write_docs` writes this page from the figures in `bench/kept`; a test holds it
against them. Where no unit says otherwise, a figure is a ratio of turns that two brokers or two
clients took in the same round of one run on one machine: the median of the rounds, the least and
the most. Where less is better, 0.50x is half of what the other takes.
[TESTING.md](internals/TESTING.md#speed) says how figures are measured and kept.
"""
NOTHING: Final = (
    "No figures are kept yet: `python -m bench.headlines --keep` measures and keeps some.\n"
)
TAIL: Final = f"""## The longer benches

Each has more measures, and goals. [MEASUREMENTS.md]({MEASUREMENTS}) has their figures,
what they mean and where the time goes; each names its commit and date, and is often older than
those above.

| command | about | figures |
|---|---|---|
"""


def render(all_kept: Sequence[Kept]) -> str:
    """The whole page: the headlines first, the other benches by name."""
    ordered = sorted(all_kept, key=lambda kept: (kept.name != FIRST, kept.name))
    parts = [section(kept) for kept in ordered] or [NOTHING]
    rows = "".join(
        f"| `{bench.command}` | {bench.about} | [{bench.name}]({bench.section}) |\n"
        for bench in BENCHES
    )
    return "\n".join([HEAD, *parts, TAIL + rows])


def section(kept: Kept) -> str:
    return "\n".join([f"## {kept.title}\n", origin(kept), *tables(kept.figures)])


def origin(kept: Kept) -> str:
    machine = kept.machine
    memory = machine["memory_bytes"] / 2**30
    return (
        f"Commit {kept.commit[:12]}, {kept.date[:10]}, `{kept.command}`, {kept.rounds} rounds.\n"
        f"Machine: {machine['cores']} cores ({machine['architecture']}), {memory:.0f} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}, {machine['java']};\n"
        f"other work took {machine['busy_before']:.0%} of it before. "
        f"Apache Kafka {machine['apache_kafka']}, librdkafka {machine['librdkafka']}.\n"
    )


def tables(figures: Sequence[Figure]) -> Iterator[str]:
    for pair, group in groupby(figures, lambda figure: figure.pair):
        rows = "".join(map(row, group))
        yield f"| {pair} | median | least to most | better is |\n|---|---|---|---|\n{rows}"


def row(figure: Figure) -> str:
    median, least, most = (number(value, figure.decimals) for value in figure.spread)
    better = "more" if figure.higher_is_better else "less"
    return f"| {figure.title} | {median}{unit_of(figure)} | {least} to {most} | {better} |\n"


def main() -> None:
    PAGE.write_text(render(read_all_kept()), encoding="utf-8")


if __name__ == "__main__":
    main()
