"""What can go wrong between a client and a broker, and which of it is worth another try.

One table says what is done about an error code. An error that is not tried again reaches the user
as one of these classes, with a message that names the broker or the thing, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final

from onceflow.errors import OnceflowError


class ClientError(OnceflowError):
    """Root of what talking to a broker raises."""


class BrokerUnreachable(ClientError):
    """No connection could be opened: wrong host, closed port, unknown name."""


class NotKafka(ClientError):
    """Something answers at that address, and it is not a Kafka broker that we can talk to."""


class ConnectionLost(ClientError):
    """The broker closed the connection before it answered."""


class ConnectionClosed(ClientError):
    """The connection was closed on this side."""


class RequestTimedOut(ClientError):
    """The broker did not answer in time."""


class AnswerMalformed(ClientError):
    """The broker's answer contradicts the protocol."""


class ApiNotServed(ClientError):
    """The broker does not offer an API in a version that this client speaks."""


class GroupNotFound(ClientError):
    """There is no such consumer group."""


class GroupNotEmpty(ClientError):
    """The group has members, and what was asked for can be done only when it has none."""


class NoSuchPartition(ClientError):
    """The topic is there, the partition is not."""


class TopicNotFound(ClientError):
    """There is no such topic."""

    def __init__(self, topic: str, known: Sequence[str] = ()) -> None:
        close = get_close_matches(topic, known, n=3)
        guess = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        super().__init__(f"there is no topic {topic!r}{guess}")
        self.topic = topic


class BrokerError(ClientError):
    """A broker refused, with an error code of the protocol."""

    def __init__(self, code: Any, api: str, subject: str, message: str | None = None) -> None:
        self.code = int(code.value)
        self.name = str(code.name).upper()
        self.api = api
        explanation = message or EXPLANATIONS.get(self.name, f"the broker refused {api}")
        super().__init__(f"{subject}: {explanation.rstrip('.')} ({self.name})")


class Action(Enum):
    """What to do about an error."""

    RETRY = "wait, then ask the same broker again"
    REFRESH = "wait, find out who is responsible now, then ask again"
    FAIL = "tell the user"


ACTIONS: Final[dict[str, Action]] = {
    "CORRUPT_MESSAGE": Action.RETRY,
    "REQUEST_TIMED_OUT": Action.RETRY,
    "COORDINATOR_LOAD_IN_PROGRESS": Action.RETRY,
    "NOT_ENOUGH_REPLICAS": Action.RETRY,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": Action.RETRY,
    "OFFSET_NOT_AVAILABLE": Action.RETRY,
    "UNKNOWN_LEADER_EPOCH": Action.RETRY,
    "UNSTABLE_OFFSET_COMMIT": Action.RETRY,
    "THROTTLING_QUOTA_EXCEEDED": Action.RETRY,
    "UNKNOWN_TOPIC_OR_PARTITION": Action.REFRESH,
    "LEADER_NOT_AVAILABLE": Action.REFRESH,
    "NOT_LEADER_OR_FOLLOWER": Action.REFRESH,
    "REPLICA_NOT_AVAILABLE": Action.REFRESH,
    "NETWORK_EXCEPTION": Action.REFRESH,
    "KAFKA_STORAGE_ERROR": Action.REFRESH,
    "FENCED_LEADER_EPOCH": Action.REFRESH,
    "COORDINATOR_NOT_AVAILABLE": Action.REFRESH,
    "NOT_COORDINATOR": Action.REFRESH,
    "NOT_CONTROLLER": Action.REFRESH,
}
"""By code; what is not here fails."""

LOST: Final = (BrokerUnreachable, ConnectionLost, RequestTimedOut)
"""Errors of the connection: another one may do better."""


def action_for(error: ClientError) -> Action:
    """What the table says about an error."""
    if isinstance(error, LOST):
        return Action.REFRESH
    if isinstance(error, BrokerError):
        return ACTIONS.get(error.name, Action.FAIL)
    return Action.FAIL


EXPLANATIONS: Final[dict[str, str]] = {
    "UNKNOWN_SERVER_ERROR": "the broker failed; its log says why",
    "OFFSET_OUT_OF_RANGE": "the log does not reach to that offset",
    "UNKNOWN_TOPIC_OR_PARTITION": "the broker does not know it",
    "MESSAGE_TOO_LARGE": "a batch is larger than the topic allows (max.message.bytes)",
    "RECORD_LIST_TOO_LARGE": "a batch is larger than the topic's segments (segment.bytes)",
    "INVALID_TOPIC_EXCEPTION": (
        "not a name for a topic: use up to 249 letters, digits, '.', '_' and '-'"
    ),
    "INVALID_RECORD": "a record breaks a rule of the topic (a compacted topic needs keys)",
    "INVALID_TIMESTAMP": "a timestamp is out of the range that the topic allows",
    "TOPIC_ALREADY_EXISTS": "there is a topic of that name already",
    "UNKNOWN_MEMBER_ID": "the group is in use by members, and only they may commit offsets",
    "REBALANCE_IN_PROGRESS": "the group is in use and handing out its partitions anew",
    "GROUP_ID_NOT_FOUND": "there is no such group",
    "NON_EMPTY_GROUP": "the group has members; stop them first",
    "INVALID_GROUP_ID": "not a name for a group",
    "UNSUPPORTED_COMPRESSION_TYPE": "the broker does not take that compression here",
    "COORDINATOR_NOT_AVAILABLE": "no broker looks after this group yet",
    "TOPIC_AUTHORIZATION_FAILED": "not allowed for this user",
    "GROUP_AUTHORIZATION_FAILED": "not allowed for this user",
    "CLUSTER_AUTHORIZATION_FAILED": "not allowed for this user",
    "POLICY_VIOLATION": "forbidden by a policy of the broker",
}
"""For the answers in which a broker says nothing but the code."""
