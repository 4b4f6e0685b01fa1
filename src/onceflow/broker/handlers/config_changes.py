"""What AlterConfigs and IncrementalAlterConfigs have in common: the configs of topics and of this
broker, each resource as a whole or not at all.

Unlike in Apache Kafka, the configs of the topics in which the broker keeps groups and transactions
are fixed: with another policy the broker would forget committed offsets, and could never end some
open transactions. Only the settings that a running broker can take over can be altered; others, and
unknown ones, are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from onceflow.broker.config import ALL_BROKERS, Alteration, altered, replaced
from onceflow.broker.requests import Answer, RequestRefusal, RequestRefused, or_hang_up, refusal_of
from onceflow.broker.topics import internal_topic_refusal, name_refusal
from onceflow.errors import OnceflowError
from onceflow.log import Ticket
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

T = TypeVar("T")

TOPIC, BROKER = 2, 4


class Change(NamedTuple):
    """What is asked for of one resource."""

    kind: int
    name: str
    alterations: Sequence[Alteration]
    anew: bool
    """Whether what is not named goes back to its default."""


def make_changes(
    node: Node,
    changes: Sequence[Change],
    *,
    validate_only: bool,
    answer: Callable[[list[RequestRefused]], T],
) -> Answer[T]:
    """Makes those that can be made; answers, with one outcome for each, when that is durable and
    all topics go by it."""
    tickets: list[Ticket] = []
    times = Counter((each.kind, each.name) for each in changes)
    outcomes = []
    has_altered_broker = False
    for change in changes:
        outcome = RequestRefused(ErrorCode.NONE)
        try:
            if times[change.kind, change.name] > 1:
                raise RequestRefused(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            make = _decide(node, change)
            if not validate_only:
                tickets.append(make())
                has_altered_broker = has_altered_broker or change.kind == BROKER
        except OnceflowError as error:
            outcome = refusal_of(error)
        outcomes.append(outcome)
    response = answer(outcomes)
    if has_altered_broker:
        return node.turns.do(
            node.topics.take_over_defaults(), lambda: or_hang_up(tickets, response)
        )
    return or_hang_up(tickets, response)


def _decide(node: Node, change: Change) -> Callable[[], Ticket]:
    """How the change is to be made; raises `RequestRefused` if it cannot be."""
    if change.kind == TOPIC:
        return _decide_topic(node, change)
    if change.kind == BROKER:
        return _decide_broker(node, change)
    raise RequestRefused(
        ErrorCode.INVALID_REQUEST,
        f"resource type {change.kind} cannot be altered here: only topics ({TOPIC}) and this "
        f"broker ({BROKER})",
    )


def _decide_topic(node: Node, change: Change) -> Callable[[], Ticket]:
    name = change.name
    if not name:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "a topic needs a name")
    if refusal := name_refusal(name):
        raise RequestRefused.of(refusal)
    topic = node.topics.by_name.get(name)
    if topic is None:
        raise RequestRefused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    if topic.is_internal:
        raise RequestRefused.of(internal_topic_refusal(name))
    config = (replaced if change.anew else altered)(topic.config, change.alterations)
    if isinstance(config, RequestRefusal):
        raise RequestRefused.of(config)
    return lambda: node.topics.alter(topic, config)


def _decide_broker(node: Node, change: Change) -> Callable[[], Ticket]:
    name, settings = change.name, node.settings
    if name not in (ALL_BROKERS, settings.broker):
        raise RequestRefused(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {settings.broker}, but received {name}",
        )
    configs = settings.decide(name, change.alterations, anew=change.anew)
    if isinstance(configs, RequestRefusal):
        raise RequestRefused.of(configs)
    return lambda: node.topics.alter_broker(name, configs)
