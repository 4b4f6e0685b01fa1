"""The arguments of `write` and `write_stream`, checked as far as that goes without brokers.

They are keywords of Python, so their names have underscores; settings of the producer beside them
go by Kafka's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from onceflow.client import ProducerSettings, catalogue_of
from onceflow.errors import InvalidSetting
from onceflow.settings import TOPIC_NAME, TRUE_OR_FALSE, Catalogue, Setting, by_name
from onceflow.spark.errors import SinkRefused
from onceflow.spark.sink.identity import QUERY_NAME, SinkIdentity
from onceflow.spark.sink.preflight import (
    CONNECT,
    check_frame,
    check_kind,
    check_spark,
    is_connect,
    problems_of,
    producer_settings,
    types_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEDGER_TOPIC: Final = "onceflow-ledger"
TRANSACTION_TIMEOUT_MS: Final = 300_000
"""Long enough for a batch and the loss of a broker; readers of the output wait so long at most for
a driver that never comes back."""
_CLIENTS: Final = catalogue_of(ProducerSettings).settings


ARGUMENTS: Final = Catalogue(
    by_name(
        Setting(
            "bootstrap",
            _CLIENTS["bootstrap.servers"].kind,
            "The brokers that are asked first.",
            is_required=True,
        ),
        Setting(
            "name",
            QUERY_NAME,
            "The name of the query: the same at every start, and no other's.",
            unset="must be given to write_stream; write makes one",
        ),
        Setting(
            "topic",
            TOPIC_NAME,
            "The topic that rows are written to.",
            unset="the column topic of each row",
        ),
        Setting(
            "group",
            QUERY_NAME,
            "The group under which a stream's source offsets are committed.",
            unset="name",
        ),
        Setting(
            "ledger_topic",
            TOPIC_NAME,
            "The topic under whose name the sink commits what it has done; it stays empty.",
            LEDGER_TOPIC,
        ),
        Setting(
            "dead_letter_topic", TOPIC_NAME, "The topic for rows that dead_letters has marked."
        ),
        Setting(
            "narrow",
            TRUE_OR_FALSE,
            "Whether rows stay in the partition where they are, and no shuffle is needed.",
            False,
        ),
        Setting(
            "continue_from_group",
            TRUE_OR_FALSE,
            "Whether a stream without a checkpoint goes on where its group has come to.",
            False,
        ),
        Setting(
            "transaction_timeout_ms",
            _CLIENTS["transaction.timeout.ms"].kind,
            "The age at which brokers abort a batch whose driver never comes back.",
            TRANSACTION_TIMEOUT_MS,
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """One write."""

    identity: SinkIdentity
    settings: ProducerSettings
    topic: str | None
    """None: rows name their topics."""
    dead_letter_topic: str | None = None
    narrow: bool = False
    continue_from_group: bool = False

    @property
    def topics(self) -> tuple[str, ...]:
        """Those that are known before the first row, in the order of their numbers."""
        return tuple(each for each in (self.topic, self.dead_letter_topic) if each is not None)

    @property
    def asks_rows(self) -> bool:
        return self.topic is None


def checked_options(
    frame: DataFrame,
    identity: SinkIdentity,
    *,
    is_stream: bool,
    topic: str | None,
    dead_letter_topic: str | None,
    narrow: bool,
    continue_from_group: bool,
    bootstrap: str,
    timeout_ms: int,
    settings: Mapping[str, Any],
) -> SinkOptions:
    """Raises `SinkRefused` with all that is wrong."""
    if is_connect(frame):
        raise SinkRefused([CONNECT])
    problems = problems_of(
        check_kind(frame, is_stream=is_stream),
        _wrong_names(identity, topic=topic, dead_letter_topic=dead_letter_topic),
        check_frame(
            types_of(frame), topic=topic, dead_letter_topic=dead_letter_topic, narrow=narrow
        ),
        check_spark(dict(frame.sparkSession.sparkContext.getConf().getAll())),
    )
    try:
        made = producer_settings(
            settings,
            bootstrap=bootstrap,
            transactional_id=identity.transactional_id,
            timeout_ms=timeout_ms,
        )
    except InvalidSetting as error:
        raise SinkRefused([*problems, str(error)]) from error
    if problems:
        raise SinkRefused(problems)
    return SinkOptions(
        identity=identity,
        settings=made,
        topic=topic,
        dead_letter_topic=dead_letter_topic,
        narrow=narrow,
        continue_from_group=continue_from_group,
    )


def _wrong_names(identity: SinkIdentity, **topics: str | None) -> Iterator[str]:
    group = None if identity.group in identity.own_names else identity.group
    names = {"name": identity.name, "group": group, "ledger_topic": identity.ledger_topic}
    return check_names({**names, **topics})


def check_names(names: Mapping[str, str | None]) -> Iterator[str]:
    """Names of topics, and what becomes part of the names of groups and transactional ids."""
    for argument, name in names.items():
        try:
            if name is not None:
                ARGUMENTS.read(argument, name)
        except InvalidSetting as error:
            yield str(error)
