"""Whether the output of an example is exact, as clients that others wrote see it.

`judge_example` is for the end; `judge_example_prefix` for any moment at which nobody writes: then
whole batches are there, exactly as many as the group's offsets and the ledger say.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.spark.kills.judge import ledger_entry, open_ends, topic_offsets
from tests.spark.pipeline.examples import Due, Ends, Example, Letter
from tests.spark.pipeline.world import Read, read_all

_SHOWN: Final = 3
_OFFSETS_FROM: Final = 2
"""The line of an offset log behind its version and what holds for all sources."""


def judge_example(example: Example, bootstrap: str, checkpoint: Path) -> list[str]:
    """What is wrong at the end, if anything: with rows, with dead letters, with who agrees."""
    batches = planned_batches(checkpoint)
    last = max(batches, default=-1)
    inputs = {topic: read_all(bootstrap, topic) for topic in example.inputs}
    ends = {
        (topic, each.partition): each.offset + 1
        for topic, records in inputs.items()
        for each in records
    }
    read = {place: end for place, end in batches.get(last, {}).items() if end}
    problems = [] if read == ends else [f"the input ends at {ends}, the last batch at {read}"]
    done = {int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")}
    if done != batches.keys():
        problems.append(f"batches without an end in Spark's log: {sorted(batches.keys() - done)}")
    problems += open_ends(bootstrap, (example.output, example.refused))
    return [*problems, *_as_committed(example, bootstrap, inputs, batches, last)]


def judge_example_prefix(example: Example, bootstrap: str, checkpoint: Path) -> list[str]:
    """What is wrong with what is committed so far, if anything."""
    batches = planned_batches(checkpoint)
    entry = ledger_entry(bootstrap, example.name)
    last = -1 if entry is None else int(entry["batch"])
    ends = batches.get(last, {})
    inputs = {
        topic: [
            each
            for each in read_all(bootstrap, topic)
            if each.offset < ends.get((topic, each.partition), 0)
        ]
        for topic in example.inputs
    }
    return list(_as_committed(example, bootstrap, inputs, batches, last))


def planned_batches(checkpoint: Path) -> dict[int, Ends]:
    """Where each batch ends, from Spark's offset log."""
    found: dict[int, Ends] = {}
    for path in (checkpoint / "offsets").glob("[0-9]*"):
        ends: dict[tuple[str, int], int] = {}
        for line in path.read_text().splitlines()[_OFFSETS_FROM:]:
            if line == "-":  # nothing of this source was read so far
                continue
            for topic, partitions in json.loads(line)["to"].items():
                ends |= {(topic, int(number)): end for number, end in partitions.items()}
        found[int(path.name)] = ends
    return found


def _as_committed(
    example: Example,
    bootstrap: str,
    inputs: Mapping[str, list[Read]],
    batches: Mapping[int, Ends],
    last: int,
) -> Iterable[str]:
    """Against the batches up to the last one that counts, on which group and ledger agree."""
    entry = ledger_entry(bootstrap, example.name)
    if (-1 if entry is None else entry["batch"]) != last:
        yield f"the ledger has {entry}, the last batch is {last}"
    group = {
        (topic, number): end
        for topic in example.inputs
        for number, end in topic_offsets(bootstrap, example.name, topic).items()
    }
    if group != dict(batches.get(last, {})):
        yield f"the group is at {group}, batch {last} ends at {batches.get(last)}"
    due = example.due(inputs, [batches[number] for number in sorted(batches) if number <= last])
    yield from _rows(example, due, read_all(bootstrap, example.output))
    yield from _letters(due, read_all(bootstrap, example.refused))


def _rows(example: Example, due: Due, output: list[Read]) -> Iterable[str]:
    found: defaultdict[str, list[Any]] = defaultdict(list)
    homes: defaultdict[str, set[int]] = defaultdict(set)
    for each in output:
        key = (each.key or b"").decode()
        found[key].append((json.loads(each.value or b"null"), each.headers))
        homes[key].add(each.partition)
    for key, partitions in homes.items():
        if len(partitions) > 1:
            yield f"{key!r} is in partitions {sorted(partitions)}"
    wrong = [
        key
        for key in sorted(found.keys() | due.rows.keys())
        if not _same(example, found.get(key, []), due.rows.get(key, []))
    ]
    for key in wrong[:_SHOWN]:
        yield f"rows of {key!r}: {found.get(key)}, not {due.rows.get(key)}"
    if len(wrong) > _SHOWN:
        yield f"and {len(wrong) - _SHOWN} keys more"


def _same(example: Example, found: list[Any], due: list[Any]) -> bool:
    if example.is_ordered:
        return found == due
    return sorted(map(repr, found)) == sorted(map(repr, due))


def _letters(due: Due, refused: list[Read]) -> Iterable[str]:
    found = Counter(
        Letter(
            each.key,
            each.value,
            each.headers["error"].decode(),
            each.headers["source.topic"].decode(),
            int(each.headers["source.partition"]),
            int(each.headers["source.offset"]),
        )
        for each in refused
    )
    for label, over in (("missing", due.letters - found), ("too many", found - due.letters)):
        if over:
            yield f"dead letters {label}: {over.total()}, as {list(over)[:_SHOWN]}"
