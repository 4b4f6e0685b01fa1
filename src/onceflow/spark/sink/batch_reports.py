"""Whether what the tasks of a batch report is what was to be written; a pure function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from onceflow.spark.errors import ReportsWrong
from onceflow.spark.sink.claims import Owner
from onceflow.spark.sink.task_report import ALL_ROWS, Report


def check_reports(reports: Iterable[Report], owners: Mapping[int, Owner]) -> int:
    """The number of rows; raises `ReportsWrong`.

    Each output partition was written by the one attempt that owns it, in one go from sequence 0;
    each task wrote as many rows as it was given; nobody who claimed something is missing.
    """
    found = list(reports)
    given = {Owner(each.attempt, each.task): each.rows for each in found if each.target == ALL_ROWS}
    written = [each for each in found if each.target != ALL_ROWS]
    problems = [*_owners(written, owners), *_sequences(written)]
    tasks = Counter(owner.task for owner in given)
    problems += [f"task {task} has reported twice" for task, times in tasks.items() if times > 1]
    problems += [
        f"task {owner.task} has claimed partitions and reported nothing"
        for owner in set(owners.values()) - given.keys()
    ]
    sums: Counter[Owner] = Counter()
    for each in written:
        sums[Owner(each.attempt, each.task)] += each.rows
    problems += [
        f"task {owner.task} was given {given.get(owner, 0)} rows and wrote {sums[owner]}"
        for owner in given.keys() | sums.keys()
        if given.get(owner, 0) != sums[owner]
    ]
    if problems:
        raise ReportsWrong("; ".join(sorted(problems)))
    return sum(given.values())


def _owners(written: Iterable[Report], owners: Mapping[int, Owner]) -> Iterable[str]:
    seen: set[int] = set()
    for each in written:
        if each.target in seen:
            yield f"target {each.target} is reported twice"
        seen.add(each.target)
        if owners.get(each.target) != Owner(each.attempt, each.task):
            yield f"target {each.target} was written by attempt {each.attempt}, not by its owner"


def _sequences(written: Iterable[Report]) -> Iterable[str]:
    for each in written:
        if each.last_sequence != each.rows - 1:
            yield (
                f"target {each.target} has {each.rows} rows and ends at sequence "
                f"{each.last_sequence}"
            )
