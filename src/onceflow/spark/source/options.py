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
from typing import Any, Final, NamedTuple

from onceflow.client import EARLIEST, LATEST, ReaderSettings, catalogue_of
from onceflow.errors import InvalidSetting
from onceflow.settings import (
    LONG_MAX,
    TEXT,
    YES_OR_NO,
    Catalogue,
    Rule,
    Setting,
    broken_rules,
    by_name,
    contradiction,
    did_you_mean,
    duration,
    first_is_larger,
    one_of,
    whole_number,
)
from onceflow.spark.errors import InvalidOptions
from onceflow.spark.source.offsets import Division
from onceflow.spark.source.option_values import (
    ASSIGNMENT,
    COLUMNS,
    HEADERS,
    POSITION,
    SELECTED_COLUMNS,
    TIME,
    TIMES,
    TOPIC_PATTERN,
    TOPICS,
    Assign,
    AtOffsets,
    AtTimes,
    Edge,
    Position,
    Selection,
)
from onceflow.types import TopicPartition

_log = logging.getLogger("onceflow.spark")

_PREFIX: Final = "kafka."
_BOOTSTRAP: Final = "bootstrap.servers"
_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_SOME: Final = whole_number(1, LONG_MAX)


# Spark's names, in its spelling: the one place where a name of ours has capital letters.
OPTIONS: Final = Catalogue(
    by_name(
        Setting("subscribe", TOPICS, "The topics to read, with partitions that are added later."),
        Setting(
            "subscribePattern",
            TOPIC_PATTERN,
            "Reads all topics in whose names it is found, in place of `subscribe`.",
        ),
        Setting("assign", ASSIGNMENT, "The partitions to read, in place of `subscribe`."),
        Setting(
            "startingOffsets",
            POSITION,
            "Where a new query starts to read.",
            unset="latest for streams, earliest for batches",
        ),
        Setting("startingTimestamp", TIME, "As startingOffsets, by time: milliseconds since 1970."),
        Setting(
            "startingOffsetsByTimestamp",
            TIMES,
            "As startingTimestamp, with a time for each partition.",
        ),
        Setting(
            "startingOffsetsByTimestampStrategy",
            one_of("error", "latest", any_case=True),
            "Where to start by time when no record is late enough.",
            "error",
        ),
        Setting("endingOffsets", POSITION, "Where a batch ends.", unset="latest"),
        Setting("endingTimestamp", TIME, "As endingOffsets, by time: milliseconds since 1970."),
        Setting(
            "endingOffsetsByTimestamp", TIMES, "As endingTimestamp, with a time for each partition."
        ),
        Setting(
            "failOnDataLoss",
            YES_OR_NO,
            "Whether a query fails when records that it has to read are gone; else it logs that.",
            True,
        ),
        Setting("includeHeaders", YES_OR_NO, "Whether rows have the column `headers`.", False),
        Setting(
            "columns",
            SELECTED_COLUMNS,
            "The columns that rows have; what is left out is not decoded.",
            unset="all, headers with includeHeaders",
        ),
        Setting(
            "minPartitions", whole_number(1), "At least so many tasks read, where there is enough."
        ),
        Setting("maxPartitions", whole_number(1), "At most so many tasks read."),
        Setting("maxRecordsPerPartition", _SOME, "The most records that one task reads."),
        Setting("maxOffsetsPerTrigger", _SOME, "The most offsets that one micro-batch spans."),
        Setting(
            "minOffsetsPerTrigger",
            _SOME,
            "A micro-batch waits for so many, for maxTriggerDelay at most.",
        ),
        Setting(
            "maxTriggerDelay",
            duration(bare=True),
            "How long minOffsetsPerTrigger may delay a micro-batch; milliseconds without a unit.",
            900_000,
        ),
        Setting(
            "fetchOffset.numRetries",
            whole_number(0),
            "How often an end below the offsets already read is checked before it counts.",
            3,
        ),
        Setting(
            "fetchOffset.retryIntervalMs", whole_number(0), "The time between these checks.", 1000
        ),
        Setting(
            "kafkaConsumer.pollTimeoutMs",
            whole_number(1),
            "How long a task waits for records; as kafka.default.api.timeout.ms.",
            unset="kafka.default.api.timeout.ms",
        ),
        Setting("groupIdPrefix", TEXT, "Has no effect: no consumer group is joined."),
    )
)
_NAMES: Final = {name.lower(): name for name in OPTIONS.settings}
_RULES: Final = tuple(
    Rule(less, more, first_is_larger, f"make {less} smaller, or {more} larger")
    for less, more in (
        ("minPartitions", "maxPartitions"),
        ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"),
    )
)

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
_CLIENTS: Final = catalogue_of(ReaderSettings)
_OF_CLIENT: Final = Catalogue(_CLIENTS.settings, _CLIENTS.aliases, {**_CLIENTS.refused, **_REFUSED})


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
    """How often an end below the offsets already read is checked before it counts."""
    end_retry_ms: int
    without_effect: tuple[str, ...]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """From what Spark hands over, names in any letters; raises `InvalidOptions`."""
        reading = _Reading(given)
        settings = reading.settings()
        reading.check_together()
        if reading.problems or settings is None:
            raise InvalidOptions(reading.problems)
        values = {name: each.default for name, each in OPTIONS.settings.items()} | reading.values
        return cls(
            settings=settings,
            selection=next(values[name] for name in _SELECTIONS if values[name] is not None),
            starting=_position(values, "starting"),
            ending=_position(values, "ending"),
            latest_without_match=values["startingOffsetsByTimestampStrategy"] == "latest",
            fail_on_data_loss=values["failOnDataLoss"],
            columns=values["columns"] or schema_columns(values["includeHeaders"]),
            division=Division(
                min_partitions=values["minPartitions"],
                max_partitions=values["maxPartitions"],
                max_records=values["maxRecordsPerPartition"],
            ),
            max_offsets=values["maxOffsetsPerTrigger"],
            min_offsets=values["minOffsetsPerTrigger"],
            max_delay_ms=values["maxTriggerDelay"],
            end_retries=values["fetchOffset.numRetries"],
            end_retry_ms=values["fetchOffset.retryIntervalMs"],
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
    return next((values[name] for name in names if values.get(name) is not None), None)


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
            for partition in sorted(
                each for each, offset in given.offsets.items() if offset == edge
            ):
                yield (
                    f"{name} for partition {partition} is {edge} ({word}), which a batch cannot "
                    "have"
                )
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
    for partition in sorted(set(first) ^ set(last)):
        has, lacks = ("a start", "end") if partition in first else ("an end", "start")
        yield f"partition {partition} has {has} and no {lacks}"
    for partition in sorted(set(first) & set(last)):
        if 0 <= last[partition] < first[partition]:
            yield (
                f"partition {partition}: {what} {first[partition]} is behind the ending "
                f"{last[partition]}"
            )


# --- reading them all ---------------------------------------------------------------------------


class _Written(NamedTuple):
    """A setting of the client, by the name that it was given."""

    name: str
    value: str


class _Reading:
    """Goes through everything that was given, and remembers all that is wrong."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self.values: dict[str, Any] = {}
        self._chosen: list[str] = []
        """What says what to read, be it usable or not."""
        self.without_effect: list[str] = []
        self._settings: dict[str, _Written] = {}
        self._are_settings_right = True
        for written, value in given.items():
            name = _NAMES.get(written.lower())
            try:
                if name is None:
                    self._setting(written, str(value).strip())
                else:
                    self._option(name, str(value).strip())
            except InvalidSetting as error:
                self._are_settings_right &= name is not None
                self.problems.append(str(error))

    def _option(self, name: str, value: str) -> None:
        if name in _SELECTIONS:
            self._chosen.append(name)
        if name in WITHOUT_EFFECT:
            self.without_effect.append(name)
        self.values[name] = OPTIONS.read(name, value)

    def _setting(self, written: str, value: str) -> None:
        key = _OF_CLIENT.name_of(written.lower().removeprefix(_PREFIX))
        if key in WITHOUT_EFFECT:
            self.without_effect.append(key)
            return
        if key in self._settings:
            other = self._settings[key].name
            raise InvalidSetting(f"{other} and {written} are the same; give one of them")
        self._settings[key] = _Written(written, value)
        if key not in _OF_CLIENT.settings and key not in _OF_CLIENT.refused:
            raise InvalidSetting(f"unknown option {written!r}{_guess(written)}")
        _OF_CLIENT.read(key, value, written=written)

    def settings(self) -> ReaderSettings | None:
        """The client's; None when there are problems with them."""
        if _BOOTSTRAP not in self._settings:
            self.problems.append(f"{_PREFIX}{_BOOTSTRAP} is missing: give HOST:PORT of a broker")
        elif self._are_settings_right:
            try:
                given = {key: each.value for key, each in self._settings.items()}
                return ReaderSettings.of({**given, **self._poll_timeout()})
            except InvalidSetting as error:
                self.problems.append(str(error))
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
        for rule in broken_rules(_RULES, values):
            one, other = (OPTIONS.settings[name].with_value(values[name]) for name in rule[:2])
            self.problems.append(contradiction(one, other, rule.advice))
        if HEADERS in values.get("columns", ()) and not values.get("includeHeaders", False):
            self.problems.append("columns names headers: set includeHeaders to true")
        self._check_assigned()

    def _check_assigned(self) -> None:
        """Offsets or times must be for the partitions that are assigned."""
        chosen = self.values.get("assign")
        if not isinstance(chosen, Assign):
            return
        for which in ("starting", "ending"):
            for partition in _wrongly_placed(_position(self.values, which), chosen.partitions):
                self.problems.append(
                    f"assign and the {which} offsets or times differ in partition {partition}"
                )


def _wrongly_placed(
    position: Position | None, assigned: frozenset[TopicPartition]
) -> list[TopicPartition]:
    match position:
        case AtOffsets(partitions) | AtTimes(Mapping() as partitions):
            return sorted(set(partitions) ^ assigned)
        case _:
            return []


def _guess(written: str) -> str:
    """An option, or a setting of the client with the prefix if that was written."""
    known = [*OPTIONS.settings, *_OF_CLIENT.settings]
    if written.lower().startswith(_PREFIX):
        known = [_PREFIX + name for name in _OF_CLIENT.settings]
    return did_you_mean(written, known)
