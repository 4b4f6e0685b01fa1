"""The same script on several brokers, and their answers side by side.

A script talks to one broker and writes down what it saw: a transcript of labelled plain values.
`differences` holds the transcript of one broker against that of Apache Kafka. What differs between
any two runs (addresses, generated names) is taken out first, by `Names.hide`; what may differ
between the two brokers stands in `known_differences.py`, with both values and the reason.
"""

from __future__ import annotations

import dataclasses
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, NamedTuple, TypeVar

Found = TypeVar("Found")
Line = tuple[str, object]

SETTLE_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.02
UUID_TEXT: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class DidNotSettle(AssertionError):
    """A broker did not come to the state that a script waits for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """Names for topics and groups that no other run uses, and the way back to readable ones."""

    bootstrap: str
    prefix: str

    @staticmethod
    def fresh(bootstrap: str) -> Names:
        # Of one length always: sizes of requests and records must not depend on it.
        return Names(bootstrap, f"t{uuid.uuid4().hex[:10]}.")

    def __call__(self, label: str) -> str:
        return self.prefix + label

    def mine(self, names: Iterable[str]) -> list[str]:
        """Those of a broker's topics or groups that this script made, in order."""
        return sorted(name for name in names if name.startswith(self.prefix))

    def hide(self, value: object) -> object:
        """The value with everything taken out of its texts that is new in each run."""
        if isinstance(value, str):
            return self._hide_text(value)
        if isinstance(value, dict):
            return {str(self.hide(key)): self.hide(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(inner) for inner in value]
        if isinstance(value, set | frozenset):
            return sorted((self.hide(inner) for inner in value), key=repr)
        return value

    def _hide_text(self, text: str) -> str:
        host, _, port = self.bootstrap.partition(":")
        text = text.replace(self.prefix, "").replace(self.prefix.replace(".", "_"), "")
        text = text.replace(self.bootstrap, "<broker>")
        return UUID_TEXT.sub("<uuid>", re.sub(rf"\b{host}[:/ ]{port}\b", "<broker>", text))


class Transcript:
    """What a script saw, in order."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def note(self, label: str, value: object) -> None:
        self.lines.append((label, value))


Script = Callable[[str, Names, Transcript], None]


@dataclasses.dataclass(frozen=True, slots=True)
class KnownDifference:
    """Where the brokers may differ: the script, the place in its transcript (a pattern over label
    and path, such as `CREATE_TOPICS v* topics * error_message`), both answers, and why."""

    script: str
    place: str
    apache_kafka: object
    onceflow: object
    reason: str

    def covers(self, script: str, difference: Difference) -> bool:
        return (
            script == self.script
            and fnmatchcase(difference.place, self.place)
            and (difference.apache_kafka, difference.onceflow) == (self.apache_kafka, self.onceflow)
        )


class Difference(NamedTuple):
    """One leaf of a transcript that is not the same on both brokers."""

    place: str
    apache_kafka: object
    onceflow: object

    def __str__(self) -> str:
        return f"{self.place}: Apache Kafka {self.apache_kafka!r}, ours {self.onceflow!r}"


def run(script: Script, bootstrap: str) -> list[Line]:
    """What the script saw on one broker, ready to be compared."""
    names = Names.fresh(bootstrap)
    transcript = Transcript()
    script(bootstrap, names, transcript)
    assert transcript.lines, "a script that notes nothing compares nothing"
    return [(label, names.hide(value)) for label, value in transcript.lines]


def heard(script: Script, bootstrap: str) -> list[Line]:
    """What the script saw there when it was first run: on a broker that others are held against,
    however many they are, it need not be run for each of them."""
    work: object = script
    if isinstance(script, partial):
        work = (script.func, script.args)
    if (work, bootstrap) not in _HEARD:
        _HEARD[work, bootstrap] = run(script, bootstrap)
    return _HEARD[work, bootstrap]


_HEARD: Final[dict[tuple[object, str], list[Line]]] = {}


def differences(
    script: str, reference: list[Line], other: list[Line], known: Iterable[KnownDifference]
) -> list[str]:
    """What is not equal and not known to differ, and what is said to differ and does not."""
    theirs, ours = [label for label, _ in reference], [label for label, _ in other]
    if theirs != ours:
        return [f"not the same steps: Apache Kafka {theirs}, ours {ours}"]
    found = [
        difference
        for (label, expected), (_, answer) in zip(reference, other, strict=True)
        for difference in _leaves(label, expected, answer)
    ]
    known = [entry for entry in known if entry.script == script]
    unknown = [str(each) for each in found if not any(e.covers(script, each) for e in known)]
    idle = [entry for entry in known if not any(entry.covers(script, each) for each in found)]
    return unknown + [f"known to differ, but does not: {entry}" for entry in idle]


def _leaves(place: str, expected: object, answer: object) -> Iterator[Difference]:
    """The places where two values differ, as deep inside as they have one shape."""
    if isinstance(expected, dict) and isinstance(answer, dict) and [*expected] == [*answer]:
        for key, inner in expected.items():
            yield from _leaves(f"{place} {key}", inner, answer[key])
    elif isinstance(expected, list) and isinstance(answer, list) and len(expected) == len(answer):
        for number, inner in enumerate(expected):
            yield from _leaves(f"{place} {number}", inner, answer[number])
    elif expected != answer:
        yield Difference(place, expected, answer)


def eventually(
    ask: Callable[[], Found], good: Callable[[Found], bool], *, seconds: float = SETTLE_SECONDS
) -> Found:
    """The first answer that is good. Brokers and groups take a while to come to a state."""
    deadline = time.monotonic() + seconds
    while not good(answer := ask()):
        if time.monotonic() > deadline:
            raise DidNotSettle(f"after {seconds:.0f} s still {answer!r}")
        time.sleep(POLL_SECONDS)
    return answer


REFERENCE: Final = "apache_kafka"
BROKERS: Final = (REFERENCE, "onceflow_server")
Compare = Callable[[Script], None]
