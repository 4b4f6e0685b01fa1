"""What can be seen to be wrong before a query starts: in the frame, the session, the settings, and
on the cluster.

Each check returns what is wrong, in words that say what to do; the user gets all of it at once.
`prepare_cluster` also creates missing topics, where brokers allow it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from onceflow.client import (
    ApiNotServed,
    BrokerError,
    ClientError,
    ClientSettings,
    Cluster,
    ProducerSettings,
    TopicNameInvalid,
    TopicNotFound,
    broker_configs,
    check,
    create_topic,
)
from onceflow.errors import InvalidSetting
from onceflow.runtime import message_library
from onceflow.settings import dotted
from onceflow.spark.errors import RowRefused, SinkRefused
from onceflow.spark.formats import DEAD_LETTER, DEAD_LETTER_FIELDS
from onceflow.spark.sink.identity import SinkIdentity
from onceflow.wire import ApiKey, ErrorCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onceflow.spark.sink.options import SinkOptions

TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
"""The columns that are written, as Spark's own sink takes them; others are left out."""
_MUST_BE_OFF: Final[Mapping[str, str]] = {
    "spark.speculation": (
        "two copies of a task would write, and one of them is always refused: set it to false"
    ),
}
_OURS: Final[Mapping[str, str]] = {
    "transactional.id": "it follows from name",
    "bootstrap.servers": "give bootstrap",
    "transaction.timeout.ms": "give transaction_timeout_ms",
    "delivery": "it is exactly-once",
}


def check_frame(
    types: Mapping[str, str], *, topic: str | None, dead_letter_topic: str | None, narrow: bool
) -> Iterator[str]:
    """`types` are the frame's columns, each with the simple name of its type."""
    if "value" not in types:
        yield "there is no column 'value': it holds what is written, as string or binary"
    if topic is None and "topic" not in types:
        yield "there is no topic: pass topic=..., or give the frame a column 'topic'"
    if topic is None and narrow:
        yield "narrow mode writes to one topic: pass topic=..."
    if narrow and not {"partition", "key"} & types.keys():
        yield (
            "in narrow mode rows stay in the partition where they are, and the frame has neither a "
            "column 'partition', which says where that is, nor a column 'key' that belongs there: "
            "select the source's column 'partition', too, or leave narrow out"
        )
    for name, allowed in TYPES.items():
        if name == "topic" and topic is not None:
            continue
        kind = types.get(name)
        if kind is not None and kind not in allowed:
            yield f"column {name!r} is of type {kind}; it must be {' or '.join(allowed)}"
    yield from _check_dead_letters(types, dead_letter_topic)


def _check_dead_letters(types: Mapping[str, str], topic: str | None) -> Iterator[str]:
    kind = types.get(DEAD_LETTER)
    if topic is None and kind is not None:
        yield (
            f"the frame has dead letters (column {DEAD_LETTER!r}) and there is no topic for them: "
            "pass dead_letter_topic=..., or drop the column"
        )
    elif topic is not None and kind is None:
        yield (
            f"dead_letter_topic is given and the frame has no column {DEAD_LETTER!r}: make it with "
            "dead_letters(frame, error) and keep it in what you select"
        )
    elif topic is not None and kind != DEAD_LETTER_FIELDS:
        yield f"column {DEAD_LETTER!r} is not as dead_letters made it: leave it as it is"


def check_spark(conf: Mapping[str, str]) -> Iterator[str]:
    """Settings of Spark that would break what is promised."""
    for key, reason in _MUST_BE_OFF.items():
        if conf.get(key, "false").lower() == "true":
            yield f"{key} is true: {reason}"


def is_connect(frame: DataFrame) -> bool:
    """Whether the frame belongs to a Spark Connect session."""
    return type(frame).__module__.startswith("pyspark.sql.connect")


CONNECT: Final = (
    "this is a Spark Connect session: the transactions of a query are driven from this program, "
    "and Connect runs the function of a batch on its server. Use a classic session "
    "(SparkSession.builder.master(...))"
)


def check_kind(frame: DataFrame, *, is_stream: bool) -> Iterator[str]:
    """A stream where a stream is needed."""
    if is_stream and not frame.isStreaming:
        yield "the frame is not a stream: use write"
    if not is_stream and frame.isStreaming:
        yield "the frame is a stream: use write_stream"


def types_of(frame: DataFrame) -> dict[str, str]:
    """The columns that are looked at, each with the simple name of its type."""
    return {each.name: each.dataType.simpleString() for each in frame.schema.fields}


def producer_settings(
    given: Mapping[str, Any], *, bootstrap: str, transactional_id: str, timeout_ms: int
) -> ProducerSettings:
    """Raises `InvalidSetting`."""
    for written in given:
        if why := _OURS.get(dotted(written)):
            raise InvalidSetting(f"{written} cannot be set: {why}")
    return ProducerSettings.of(
        {
            **given,
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
        }
    )


def problems_of(*parts: Iterable[str]) -> list[str]:
    """All of them, in order."""
    return [problem for part in parts for problem in part]


# --- the cluster ---------------------------------------------------------------------------------


T = TypeVar("T")

_log = logging.getLogger("onceflow.spark")

_NEEDED: Final = (
    ApiKey.PRODUCE,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.OFFSET_FETCH,
)
_READ: Final = 3
_WRITE: Final = 4
"""Operations, as bits of what a user may do."""
_NOT_SAID: Final = -(2**31)
_CREATION_S: Final = 3.0
_POLL_S: Final = 0.05
_RETENTION: Final = "offsets.retention.minutes"
_MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
_AUTO_CREATE: Final = "auto.create.topics.enable"


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Settings of the brokers; None where this user may not see them."""

    max_timeout_ms: int | None
    offsets_retention_ms: int
    """How long the offsets of a group are kept; 0 where this user may not see it."""
    creates_topics: bool | None

    @classmethod
    def of(cls, configs: Mapping[str, str | None]) -> BrokerLimits:
        limit, makes = configs.get(_MAX_TIMEOUT), configs.get(_AUTO_CREATE)
        minutes = int(configs.get(_RETENTION) or 0)
        return cls(
            None if limit is None else int(limit),
            minutes * 60_000,
            {"true": True, "false": False}.get(makes or ""),
        )


def prepare_cluster(options: SinkOptions, *, reads: bool) -> int:
    """Checks the cluster and creates what is missing: the ledger's topic, and output topics where
    brokers create topics by themselves. `reads`: the query commits source offsets.

    How long brokers keep the offsets of a group, in milliseconds, 0 where this user may not see it.
    Raises `SinkRefused` with all that is wrong.
    """
    limits, problems = run_on_own_thread(_prepare(options, reads))
    if problems:
        raise SinkRefused(problems)
    if reads and not limits.offsets_retention_ms:
        _warn_of_hidden_age(options.identity)
    return limits.offsets_retention_ms


def _warn_of_hidden_age(identity: SinkIdentity) -> None:
    _log.warning(
        "query %r cannot see how long brokers keep offsets (%s): this user lacks the right to "
        "DESCRIBE_CONFIGS on the cluster. So it relies on its ledger for an hour only: a batch "
        "that comes later costs a transaction more, and one that a driver has left unfinished is "
        "refused when the ledger is empty, also if brokers have only forgotten it",
        identity.name,
        _RETENTION,
    )


def ensure_topic(settings: ClientSettings, name: str) -> None:
    """For a topic that a row names; raises `RowRefused` when it is not there and must not be.

    Over connections of its own, like what `HangingTransactions` asks of coordinators: these are
    rare, and messages of the async client only.
    """

    async def make() -> list[str]:
        async with Cluster(settings.bootstrap_servers, settings.cluster()) as cluster:
            limits = await _read_limits(cluster)
            return await _ensure_topic(cluster, name, limits)

    if problems := run_on_own_thread(make()):
        raise RowRefused(problems[0])


def run_on_own_thread(work: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine to its end. In a notebook this thread has a running event loop, where
    `asyncio.run` would raise."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _prepare(options: SinkOptions, reads: bool) -> tuple[BrokerLimits, list[str]]:
    settings, identity, topics = options.settings, options.identity, options.topics
    async with Cluster(settings.bootstrap_servers, settings.cluster()) as cluster:
        limits = await _read_limits(cluster)
        problems = [*_timeout_problems(settings, limits), *await _api_problems(cluster)]
        for topic in topics:
            problems += await _ensure_topic(cluster, topic, limits)
        problems += await _ensure_ledger_topic(cluster, identity.ledger_topic)
        if not problems:
            groups = [identity.ledger_group, *([identity.group] if reads else ())]
            problems += await _rights(cluster, topics, identity.ledger_topic, groups)
        return limits, problems


async def _read_limits(cluster: Cluster) -> BrokerLimits:
    try:
        configs = await broker_configs(cluster, cluster.node_ids[0])
    except BrokerError as error:
        if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return BrokerLimits.of({})
    return BrokerLimits.of({each.name: each.value for each in configs})


def _timeout_problems(settings: ProducerSettings, limits: BrokerLimits) -> Iterator[str]:
    limit, wanted = limits.max_timeout_ms, settings.transaction_timeout_ms
    if limit is not None and wanted > limit:
        yield (
            f"transaction_timeout_ms = {wanted} is more than the broker allows "
            f"({_MAX_TIMEOUT} = {limit}): give less, or let the broker allow more"
        )


async def _api_problems(cluster: Cluster) -> list[str]:
    connection = await cluster.any_broker()
    problems = []
    for key in _NEEDED:
        try:
            connection.version_of(key)
        except ApiNotServed as error:
            problems.append(f"{error}: transactions need Apache Kafka 3.0 or later")
    return problems


async def _ensure_topic(cluster: Cluster, name: str, limits: BrokerLimits) -> list[str]:
    """What keeps the topic from being there; nothing once it exists or a broker has created it."""
    try:
        await cluster.find_topic(name)
    except BrokerError as error:
        return [_not_seen(error, name, "DESCRIBE and WRITE")]
    except TopicNameInvalid as error:
        return [str(error)]  # no broker can create it
    except TopicNotFound as error:
        is_created = limits.creates_topics is not False and await _auto_create(cluster, name)
        return [] if is_created else [f"{error}; create it"]
    return []


async def _auto_create(cluster: Cluster, name: str) -> bool:
    """Lets a broker create the topic, and waits for it: a broker answers first that there is none,
    and creates it a moment later."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CREATION_S
    await _request_metadata(cluster, [name], creates=True)
    while loop.time() < deadline:
        try:
            topic = await cluster.find_topic(name)
        except TopicNotFound:
            await asyncio.sleep(_POLL_S)
            continue
        return bool(topic.partitions)
    return False


async def _request_metadata(cluster: Cluster, names: Collection[str], *, creates: bool) -> Any:
    with message_library:
        from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=name) for name in names),
        allow_auto_topic_creation=creates,
        include_topic_authorized_operations=not creates,
    )
    connection = await cluster.any_broker()
    return await connection.request(ApiKey.METADATA, request)


def _not_seen(error: BrokerError, name: str, rights: str) -> str:
    if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"this user needs the right to {rights} topic {name!r}"
    return f"topic {name!r} cannot be looked at: {error}"


async def _ensure_ledger_topic(cluster: Cluster, name: str) -> list[str]:
    try:
        await cluster.find_topic(name)
    except BrokerError as error:
        return [_not_seen(error, name, "DESCRIBE and READ")]
    except TopicNotFound:
        try:
            await create_topic(cluster, name, partitions=1)
        except ClientError as error:
            if not _is_there(error):
                problem = (
                    f"the ledger's topic {name!r} is missing and cannot be created ({error}): "
                    "create it with one partition, or name an existing topic as ledger_topic; "
                    "nothing is written to it"
                )
                return [problem]
    return []


def _is_there(error: ClientError) -> bool:
    return isinstance(error, BrokerError) and error.code == ErrorCode.TOPIC_ALREADY_EXISTS


# --- rights -------------------------------------------------------------------------------------


async def _rights(
    cluster: Cluster, topics: Sequence[str], ledger: str, groups: Collection[str]
) -> list[str]:
    needed = {**dict.fromkeys(topics, (_WRITE, "WRITE")), ledger: (_READ, "READ")}
    answer = await _request_metadata(cluster, needed, creates=False)
    problems = []
    for topic in answer.topics:
        bit, word = needed[topic.name]
        if not _may(topic.topic_authorized_operations, bit):
            problems.append(f"this user needs the right to {word} topic {topic.name!r}")
    for group in groups:
        if not await _may_commit(cluster, group):
            problems.append(f"this user needs the right to READ group {group!r}")
    return problems


async def _may_commit(cluster: Cluster, group: str) -> bool:
    with message_library:
        from kio.schema.describe_groups.v5.request import DescribeGroupsRequest

    request = DescribeGroupsRequest(groups=(group,), include_authorized_operations=True)

    async def attempt() -> bool:
        connection = await cluster.coordinator(group)
        answer = await connection.request(ApiKey.DESCRIBE_GROUPS, request)
        for described in answer.groups:
            if described.error_code.value == ErrorCode.GROUP_AUTHORIZATION_FAILED:
                return False
            if described.error_code.value not in (0, ErrorCode.GROUP_ID_NOT_FOUND):
                check(ApiKey.DESCRIBE_GROUPS, described, f"group {group!r}")
            return _may(described.authorized_operations, _READ)
        return True

    try:
        return await cluster.retrying(attempt)
    except BrokerError as error:
        if error.code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            return False
        raise


def _may(operations: int, bit: int) -> bool:
    return operations == _NOT_SAID or bool(operations >> bit & 1)
