"""The settings of a pipeline, sorted by owner: Spark, the source's reader, the sink's producer, the
broker beside it. Each owner checks its own, so that wrong ones are reported before anything is
started."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from onceflow.client import ProducerSettings, ReaderSettings, catalogue_of
from onceflow.errors import InvalidSetting
from onceflow.settings import Catalogue, NotAllowed, did_you_mean, not_allowed, settings_of, shown
from onceflow.spark.errors import InvalidOptions, KeyPath, KeyProblem
from onceflow.spark.pipeline.plan import SourcePlan
from onceflow.spark.source import SourceOptions

_SPARK: Final = "spark."
_SOMEWHERE: Final = "127.0.0.1:9092"
"""An address for judging settings, which is not connected to."""
_OURS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "give source.bootstrap",
    "transactional.id": "pipeline.name is it",
    "delivery": "a pipeline is exactly-once",
    "enable.idempotence": "a pipeline is exactly-once",
    "acks": "a pipeline is exactly-once",
}
"""Settings that a pipeline has by itself."""
_OWN_OPTIONS: Final[Mapping[str, str]] = {
    "subscribe": "topics",
    "subscribepattern": "pattern",
    "assign": "topics",
    "startingoffsets": "starting",
    "startingtimestamp": "starting",
    "startingoffsetsbytimestamp": "starting",
    "kafka.bootstrap.servers": "bootstrap",
    "bootstrap.servers": "bootstrap",
}
"""Options of the source that have a key of their own."""
_NOT_HERE: Final = ("endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp", "columns")


class Divided(NamedTuple):
    """Settings by who they belong to; some belong to two."""

    spark: dict[str, str]
    reader: dict[str, str]
    producer: dict[str, str]
    problems: list[KeyProblem]


_READERS: Final = settings_of(ReaderSettings)
_PRODUCERS: Final = settings_of(ProducerSettings)
_CLIENTS: Final = catalogue_of(ProducerSettings)
_ALL: Final = Catalogue({**_READERS, **_PRODUCERS}, _CLIENTS.aliases, {**_CLIENTS.refused, **_OURS})


def divide_settings(given: Mapping[str, str]) -> Divided:
    """`[settings]`, by dotted names."""
    divided = Divided({}, {}, {}, [])
    spelled: dict[str, str] = {}
    for written, value in given.items():
        if written.startswith(_SPARK):
            divided.spark[written] = value
            continue
        name = _ALL.name_of(written)
        other = spelled.setdefault(name, written)
        twice = f"it is {other}, too: give one of them" if other != written else ""
        if problem := twice or _problem(name, value):
            divided.problems.append(KeyProblem(("settings", *written.split(".")), problem))
        if name in _READERS:
            divided.reader[name] = value
        if name in _PRODUCERS:
            divided.producer[name] = value
    if not divided.problems:
        divided.problems.extend(_together(divided))
    return divided


def _problem(name: str, value: str) -> str:
    """Empty where a setting of the client is right by itself."""
    if name in _ALL.refused:
        return f"it cannot be set here: {_ALL.refused[name]}"
    if name not in _ALL.settings:
        guess = did_you_mean(name, _ALL.settings) or "; those of Spark begin with spark."
        return f"there is no such setting of a Kafka client{guess}"
    kind = _ALL.settings[name].kind
    try:
        kind(value)
    except NotAllowed as error:
        return not_allowed("the value" if kind.is_secret else shown(value), error)
    return ""


def _together(divided: Divided) -> Iterator[KeyProblem]:
    """Contradictions, each once."""
    said = set()
    for kind, mine in ((ReaderSettings, divided.reader), (ProducerSettings, divided.producer)):
        try:
            kind.of(mine)
        except InvalidSetting as error:
            said.add(str(error))
    return (KeyProblem(("settings",), text) for text in sorted(said))


# --- the source ---------------------------------------------------------------------------------


def check_source_options(
    path: KeyPath, table: Mapping[str, Any], plan: SourcePlan, reader: Mapping[str, str]
) -> list[KeyProblem]:
    """What the source would say of its options."""
    problems = []
    options = table.get("options")
    for name in options if isinstance(options, Mapping) else ():
        if name.lower() in _OWN_OPTIONS:
            instead = _OWN_OPTIONS[name.lower()]
            problems.append(KeyProblem((*path, "options", name), f"give it as {instead}"))
        elif name.lower() in _NOT_HERE:
            problems.append(KeyProblem((*path, "options", name), "a pipeline has no use for it"))
    if problems:
        return problems
    try:
        SourceOptions.of({**reader, **plan.options, "bootstrap.servers": _SOMEWHERE}).check_stream()
    except InvalidOptions as error:
        return [KeyProblem(_blamed(path, table, text), text) for text in error.problems]
    return []


def _blamed(path: KeyPath, table: Mapping[str, Any], text: str) -> KeyPath:
    """The key that a problem of the source is about."""
    about = set(re.findall(r"[\w.]+", text))
    for name in table.get("options", {}):
        if name in about:
            return (*path, "options", name)
    own = next((_OWN_OPTIONS[word.lower()] for word in about if word.lower() in _OWN_OPTIONS), "")
    return (*path, own) if own in table else path


# --- the broker ---------------------------------------------------------------------------------


def broker_settings(given: Mapping[str, str]) -> Iterator[KeyProblem]:
    """What the broker would say of its settings."""
    from onceflow.broker import load_config

    try:
        load_config(given, {}, None)
    except InvalidSetting as error:
        for text in _each(str(error)):
            starts = {name: (f"{name} ", f"unknown setting {name!r}") for name in given}
            key = next((name for name, start in starts.items() if text.startswith(start)), "")
            yield KeyProblem(("broker", *key.split(".")) if key else ("broker",), text)


def _each(message: str) -> list[str]:
    """One or several problems, as the broker lists them."""
    first, *rest = message.split("\n  - ")
    return rest or [first]
