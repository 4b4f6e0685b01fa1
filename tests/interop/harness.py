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
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Final, TypeVar

Found = TypeVar("Found")
Line = tuple[str, object]

SETTLE_SECONDS: Final = 30.0
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
            return {self.hide(key): self.hide(inner) for key, inner in value.items()}
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
    """Where the brokers may differ: script and label (patterns), both answers, and why.

    An answer given as `None` is not held to a value.
    """

    script: str
    label: str
    apache_kafka: object
    onceflow: object
    reason: str

    def covers(self, script: str, label: str) -> bool:
        return fnmatchcase(script, self.script) and fnmatchcase(label, self.label)

    def matches(self, apache_kafka: object, onceflow: object) -> bool:
        return (
            apache_kafka != onceflow
            and self.apache_kafka in (None, apache_kafka)
            and self.onceflow in (None, onceflow)
        )


def run(script: Script, bootstrap: str) -> list[Line]:
    """What the script saw on one broker, ready to be compared."""
    names = Names.fresh(bootstrap)
    transcript = Transcript()
    script(bootstrap, names, transcript)
    assert transcript.lines, "a script that notes nothing compares nothing"
    return [(label, names.hide(value)) for label, value in transcript.lines]


def differences(
    script: str, reference: list[Line], other: list[Line], known: Iterable[KnownDifference]
) -> list[str]:
    """What is not equal and not known to differ, and what is said to differ and does not."""
    theirs, ours = [label for label, _ in reference], [label for label, _ in other]
    if theirs != ours:
        return [f"not the same steps: Apache Kafka {theirs}, ours {ours}"]
    found = []
    for (label, expected), (_, answer) in zip(reference, other, strict=True):
        entries = [entry for entry in known if entry.covers(script, label)]
        if entries and any(entry.matches(expected, answer) for entry in entries):
            continue
        if expected != answer:
            found.append(f"{label}\n    Apache Kafka: {expected!r}\n    ours:         {answer!r}")
        elif entries:
            found.append(f"{label}: a known difference that is none; take it out of the table")
    return found


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
