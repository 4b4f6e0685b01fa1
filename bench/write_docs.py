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


class Bench(NamedTuple):
    """A bench that takes long, and the page that says what its figures mean."""

    command: str
    about: str
    page: str


BENCHES: Final = (
    Bench("python -m bench.broker", "the broker against Apache Kafka", "internals/BROKER.md"),
    Bench("python -m bench.transactions", "transactions on both", "TRANSACTIONS.md"),
    Bench("python -m bench.client", "the client against aiokafka and confluent-kafka", "CLIENT.md"),
    Bench("python -m bench.session", "sessions against the same loop by aiokafka", "SESSION.md"),
    Bench("python -m bench.spark", "source and sink against Spark's own connector", "SPARK.md"),
    Bench("python -m bench.flink", "pipelines on Spark against PyFlink", "internals/TESTING.md"),
    Bench("python -m bench.log", "the log against the plain way", "internals/LOG.md"),
    Bench("python -m bench.records", "batches against other libraries", "internals/RECORDS.md"),
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
TAIL: Final = """## The longer benches

Each has more measures, and goals. Their pages say what the figures mean and where the time goes;
figures there are of the commit that they name, and often older than those above.

| command | about | page |
|---|---|---|
"""


def render(all_kept: Sequence[Kept]) -> str:
    """The whole page: the headlines first, the other benches by name."""
    ordered = sorted(all_kept, key=lambda kept: (kept.name != FIRST, kept.name))
    parts = [section(kept) for kept in ordered] or [NOTHING]
    rows = "".join(
        f"| `{bench.command}` | {bench.about} | [{bench.page}]({bench.page}) |\n"
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
