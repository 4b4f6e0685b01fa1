"""The options of `format("onceflow")`: those of Spark's own Kafka source, by the same names and
with the same meaning, and the client's settings, with and without `kafka.` before their names.

    spark.readStream.format("onceflow").options(
        **{"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
    )

Everything that is wrong is reported at once, before a broker is asked. Options of Spark's source
that this one has no use for are in `WITHOUT_EFFECT`, and `warn` logs them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, NoReturn

from onceflow.client import EARLIEST, LATEST, ReaderSettings
from onceflow.errors import InvalidSetting
from onceflow.settings import LONG_MAX, TEXT, YES_OR_NO, NotAllowed, whole_number
from onceflow.spark.errors import InvalidOptions
from onceflow.spark.source.offsets import Division
from onceflow.spark.source.option_values import (
    COLUMNS,
    HEADERS,
    Assign,
    AtOffsets,
    AtTimes,
    Edge,
    Position,
    Reader,
    Selection,
    assignment,
    columns,
    duration_ms,
    pattern,
    position,
    strategy,
    time,
    times,
    topics,
)
from onceflow.types import TopicPartition

_log = logging.getLogger("onceflow.spark")

_PREFIX: Final = "kafka."
_BOOTSTRAP: Final = "bootstrap.servers"
_SOME: Final = whole_number(1, LONG_MAX)
_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")

_READERS: Final[Mapping[str, Reader]] = {
    "subscribe": topics,
    "subscribePattern": pattern,
    "assign": assignment,
    "startingOffsets": position,
    "startingTimestamp": time,
    "startingOffsetsByTimestamp": times,
    "startingOffsetsByTimestampStrategy": strategy,
    "endingOffsets": position,
    "endingTimestamp": time,
    "endingOffsetsByTimestamp": times,
    "failOnDataLoss": YES_OR_NO,
    "includeHeaders": YES_OR_NO,
    "columns": columns,
    "minPartitions": whole_number(1),
    "maxPartitions": whole_number(1),
    "maxRecordsPerPartition": _SOME,
    "maxOffsetsPerTrigger": _SOME,
    "minOffsetsPerTrigger": _SOME,
    "maxTriggerDelay": duration_ms,
    "fetchOffset.numRetries": whole_number(0),
    "fetchOffset.retryIntervalMs": whole_number(0),
    "kafkaConsumer.pollTimeoutMs": whole_number(1),
    "groupIdPrefix": TEXT,
}
_NAMES: Final = {name.lower(): name for name in _READERS}

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "groupIdPrefix": "no consumer group is joined",
    "group.id": "no consumer group is joined; the sink commits offsets to its own group",
}
_BY_SPARK: Final = "Spark keeps the offsets: use startingOffsets, which applies to new queries"
_AS_BYTES: Final = "keys and values come as bytes: use functions of the DataFrame"
_NO_GROUP: Final = "it is for members of consumer groups, and this source joins none"
_REFUSED: Final[Mapping[str, str]] = {
    "auto.offset.reset": _BY_SPARK,
    "enable.auto.commit": _BY_SPARK,
    "auto.commit.interval.ms": _BY_SPARK,
    "key.deserializer": _AS_BYTES,
    "value.deserializer": _AS_BYTES,
    "interceptor.classes": "it could change the records",
    "group.instance.id": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "max.poll.records": "records come by column: use max.partition.fetch.bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Made by `of`. A position of None is the default, which is not the same for batches and
    streams."""

    settings: ReaderSettings
    selection: Selection
    starting: Position | None
    ending: Position | None
    latest_without_match: bool
    """Where to start by time when no record is late enough; else that is an error."""
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    division: Division
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    end_retries: int
    """How often an end that is before what was read is asked for again before it is believed."""
    end_retry_ms: int
    without_effect: tuple[str, ...]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """From what Spark hands over, names in any letters; raises `InvalidOptions`."""
        reading = _Reading(given)
        values = reading.values
        settings = reading.settings()
        reading.check_together()
        if reading.problems or settings is None:
            raise InvalidOptions(reading.problems)
        return cls(
            settings=settings,
            selection=next(values[name] for name in _SELECTIONS if name in values),
            starting=_position(values, "starting"),
            ending=_position(values, "ending"),
            latest_without_match=values.get("startingOffsetsByTimestampStrategy", False),
            fail_on_data_loss=values.get("failOnDataLoss", True),
            columns=values.get("columns") or schema_columns(values.get("includeHeaders", False)),
            division=Division(
                min_partitions=values.get("minPartitions"),
                max_partitions=values.get("maxPartitions"),
                max_records=values.get("maxRecordsPerPartition"),
            ),
            max_offsets=values.get("maxOffsetsPerTrigger"),
            min_offsets=values.get("minOffsetsPerTrigger"),
            max_delay_ms=values.get("maxTriggerDelay", 900_000),
            end_retries=values.get("fetchOffset.numRetries", 3),
            end_retry_ms=values.get("fetchOffset.retryIntervalMs", 1000),
            without_effect=tuple(reading.without_effect),
        )

    def warn(self) -> None:
        """Logs what was given and has no effect."""
        for name in self.without_effect:
            _log.warning("option %s has no effect: %s", name, WITHOUT_EFFECT[name])

    @property
    def stream_start(self) -> Position:
        return Edge.LATEST if self.starting is None else self.starting

    @property
    def batch_start(self) -> Position:
        return Edge.EARLIEST if self.starting is None else self.starting

    @property
    def batch_end(self) -> Position:
        return Edge.LATEST if self.ending is None else self.ending

    def check_stream(self) -> None:
        """Raises `InvalidOptions` for what a stream cannot have."""
        if self.ending is not None:
            raise InvalidOptions(["a stream has no end: leave the ending... options out"])

    def check_batch(self) -> None:
        """Raises `InvalidOptions` for what a batch cannot have."""
        problems = list(_batch_problems(self.batch_start, self.batch_end))
        if problems:
            raise InvalidOptions(problems)


def schema_columns(with_headers: bool) -> tuple[str, ...]:
    """The columns of Spark's own Kafka source."""
    return COLUMNS if with_headers else tuple(name for name in COLUMNS if name != HEADERS)


def _position(values: Mapping[str, Any], which: str) -> Position | None:
    """Of several, the one that counts in Spark's own source."""
    names = (f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets")
    return next((values[name] for name in names if name in values), None)


def _batch_problems(start: Position, end: Position) -> Iterator[str]:
    if start is Edge.LATEST:
        yield "startingOffsets = 'latest' is for streams; a batch starts at earliest or at offsets"
    if end is Edge.EARLIEST:
        yield "endingOffsets = 'earliest' would read nothing; it may be latest or offsets"
    for name, given, edge, word in (
        ("startingOffsets", start, LATEST, "latest"),
        ("endingOffsets", end, EARLIEST, "earliest"),
    ):
        if isinstance(given, AtOffsets):
            for place in sorted(place for place, found in given.offsets.items() if found == edge):
                yield f"{name} for partition {place} is {edge} ({word}), which a batch cannot have"
    yield from _crossed(start, end)


def _crossed(start: Position, end: Position) -> Iterator[str]:
    """What can be seen without a broker of a start that is behind its end."""
    match start, end:
        case AtOffsets(first), AtOffsets(last):
            what = "offset"
        case AtTimes(Mapping() as first), AtTimes(Mapping() as last):
            what = "timestamp"
        case AtTimes(int(first_ms)), AtTimes(int(last_ms)):
            if first_ms > last_ms:
                yield f"startingTimestamp {first_ms} is later than endingTimestamp {last_ms}"
            return
        case _:
            return
    for place in sorted(set(first) ^ set(last)):
        has, lacks = ("a start", "end") if place in first else ("an end", "start")
        yield f"partition {place} has {has} and no {lacks}"
    for place in sorted(set(first) & set(last)):
        if 0 <= last[place] < first[place]:
            yield f"partition {place}: {what} {first[place]} is behind the ending {last[place]}"


# --- reading them all ---------------------------------------------------------------------------


class _Readable(ReaderSettings):
    """Reads one value; contradictions between values are found once all are read."""

    @classmethod
    def _completed(cls, given: Mapping[str, Any]) -> NoReturn:
        raise _Fine


class _Fine(Exception):
    """Nothing is wrong with a setting by itself."""


class _Setting(NamedTuple):
    written: str
    value: str


class _Reading:
    """Goes through everything that was given, and remembers all that is wrong."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self.values: dict[str, Any] = {}
        self._chosen: list[str] = []
        """What says what to read, be it usable or not."""
        self.without_effect: list[str] = []
        self._settings: dict[str, _Setting] = {}
        for written, value in given.items():
            name = _NAMES.get(written.lower())
            if name is None:
                self._setting(written, str(value).strip())
            else:
                self._option(name, str(value).strip())

    def _option(self, name: str, value: str) -> None:
        if name in _SELECTIONS:
            self._chosen.append(name)
        if name in WITHOUT_EFFECT:
            self.without_effect.append(name)
        try:
            self.values[name] = _READERS[name](value)
        except NotAllowed as error:
            self.problems.append(f"{name} = {value!r} is not allowed; it may be {error}")

    def _setting(self, written: str, value: str) -> None:
        key = written.lower().removeprefix(_PREFIX)
        if key in self._settings:
            other = self._settings[key].written
            self.problems.append(f"{other} and {written} are the same; give one of them")
        elif key in _REFUSED:
            self.problems.append(f"{written} cannot be set: {_REFUSED[key]}")
        elif key in WITHOUT_EFFECT:
            self.without_effect.append(key)
        else:
            self._settings[key] = _Setting(written, value)

    def settings(self) -> ReaderSettings | None:
        """The client's; None when there are problems with them."""
        problems = []
        for key, (written, value) in self._settings.items():
            try:
                _Readable.of({key: value})
            except _Fine:
                continue
            except InvalidSetting as error:
                problems.append(_about_setting(written, key, error))
        if _BOOTSTRAP not in self._settings:
            problems.append(f"{_PREFIX}{_BOOTSTRAP} is missing: give HOST:PORT of a broker")
        if not problems:
            try:
                given = {key: each.value for key, each in self._settings.items()}
                return ReaderSettings.of({**given, **self._poll_timeout()})
            except InvalidSetting as error:
                problems.append(str(error))
        self.problems += problems
        return None

    def _poll_timeout(self) -> dict[str, int]:
        """Spark's word for how long a task waits for records."""
        given = self.values.get("kafkaConsumer.pollTimeoutMs")
        key = "default.api.timeout.ms"
        return {} if given is None or key in self._settings else {key: given}

    def check_together(self) -> None:
        """Options that need or contradict each other."""
        values = self.values
        if not self._chosen:
            self.problems.append(
                f"one of {', '.join(_SELECTIONS)} is missing: it says what to read"
            )
        if len(self._chosen) > 1:
            both = " and ".join(sorted(self._chosen))
            self.problems.append(f"{both} contradict each other: give one of them")
        for less, more in (
            ("minPartitions", "maxPartitions"),
            ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"),
        ):
            if less in values and more in values and values[less] > values[more]:
                self.problems.append(
                    f"{less} = {values[less]} is more than {more} = {values[more]}"
                )
        if HEADERS in values.get("columns", ()) and not values.get("includeHeaders", False):
            self.problems.append("columns names headers: set includeHeaders to true")
        self._check_assigned()

    def _check_assigned(self) -> None:
        """Offsets or times must be for the partitions that are assigned."""
        chosen = self.values.get("assign")
        if not isinstance(chosen, Assign):
            return
        for which in ("starting", "ending"):
            for place in _wrongly_placed(_position(self.values, which), chosen.partitions):
                self.problems.append(
                    f"assign and the {which} offsets or times differ in partition {place}"
                )


def _wrongly_placed(
    position: Position | None, assigned: frozenset[TopicPartition]
) -> list[TopicPartition]:
    match position:
        case AtOffsets(places) | AtTimes(Mapping() as places):
            return sorted(set(places) ^ assigned)
        case _:
            return []


def _about_setting(written: str, key: str, error: InvalidSetting) -> str:
    """What is no setting may be an option that is misspelled."""
    close = get_close_matches(key, list(_NAMES), n=1, cutoff=0.8)
    if close and written.lower() == key:
        return f"there is no option {written}; did you mean {_NAMES[close[0]]}?"
    return f"{written}: {error}"
