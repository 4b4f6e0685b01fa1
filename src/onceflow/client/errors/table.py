"""One table: what is done about an error code in the answer to an API.

For producers with a transactional id it follows what Apache Kafka was seen to answer: a refusal in
the middle of a transaction (stale epoch, wrong state) is settled by an abort at the producer's own
epoch, which does no harm and tells a transaction that timed out from a producer that was fenced;
where the older protocol cannot tell, and where the abort itself is refused, it is the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Literal

from onceflow.wire import ApiKey, ErrorCode as E


class Action(Enum):
    """What to do about an error, and what a user is advised when it is not done for them."""

    RETRY = "wait, then ask the same broker again", "call again later"
    REFRESH = "wait, find out who is responsible now, then ask again", "call again later"
    ABORT = (
        "abort the transaction; without one, the records have failed",
        "abort the transaction if there is one, then do its work again",
    )
    FATAL = "the producer can do nothing more", "close the producer; a new one may go on"
    REJOIN = (
        "join the group again; what the member holds stays with it until then",
        "poll, so that the member can join again, then call again",
    )
    CATCH_UP = (
        "the group went on without the member: it has lost what it held, and joins again",
        "poll: the member joins again and starts from what was committed",
    )
    JOIN_ANEW = (
        "the group does not know the member any more: as CATCH_UP, under a new member id",
        "poll: the member joins again and starts from what was committed",
    )
    DONE = "take it for success", "nothing: it was done before"
    FAIL = "tell the user", "correct what the message says, then call again"

    def __init__(self, meaning: str, advice: str) -> None:
        self.meaning = meaning
        self.advice = advice


_ANYWHERE: Final[Mapping[int, Action]] = {
    E.CORRUPT_MESSAGE: Action.RETRY,
    E.REQUEST_TIMED_OUT: Action.RETRY,
    E.COORDINATOR_LOAD_IN_PROGRESS: Action.RETRY,
    E.NOT_ENOUGH_REPLICAS: Action.RETRY,
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Action.RETRY,
    E.CONCURRENT_TRANSACTIONS: Action.RETRY,
    E.OFFSET_NOT_AVAILABLE: Action.RETRY,
    E.UNKNOWN_LEADER_EPOCH: Action.RETRY,
    E.UNSTABLE_OFFSET_COMMIT: Action.RETRY,
    E.THROTTLING_QUOTA_EXCEEDED: Action.RETRY,
    E.UNKNOWN_TOPIC_OR_PARTITION: Action.REFRESH,
    E.LEADER_NOT_AVAILABLE: Action.REFRESH,
    E.NOT_LEADER_OR_FOLLOWER: Action.REFRESH,
    E.REPLICA_NOT_AVAILABLE: Action.REFRESH,
    E.NETWORK_EXCEPTION: Action.REFRESH,
    E.KAFKA_STORAGE_ERROR: Action.REFRESH,
    E.FENCED_LEADER_EPOCH: Action.REFRESH,
    E.COORDINATOR_NOT_AVAILABLE: Action.REFRESH,
    E.NOT_COORDINATOR: Action.REFRESH,
    E.NOT_CONTROLLER: Action.REFRESH,
    E.UNKNOWN_TOPIC_ID: Action.REFRESH,
    E.INCONSISTENT_TOPIC_ID: Action.REFRESH,
    E.TRANSACTION_ABORTABLE: Action.ABORT,
}

_NOT_PERMITTED: Final[dict[int, Action]] = {
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Action.FATAL,
    E.CLUSTER_AUTHORIZATION_FAILED: Action.FATAL,
    E.UNSUPPORTED_VERSION: Action.FATAL,
}
_LOST_IDENTITY: Final[dict[int, Action]] = {
    **_NOT_PERMITTED,
    E.INVALID_PRODUCER_EPOCH: Action.FATAL,
    E.PRODUCER_FENCED: Action.FATAL,
    E.INVALID_PRODUCER_ID_MAPPING: Action.FATAL,
    E.INVALID_TXN_STATE: Action.FATAL,
}

_MEMBER: Final[dict[int, Action]] = {
    E.REBALANCE_IN_PROGRESS: Action.REJOIN,
    E.ILLEGAL_GENERATION: Action.CATCH_UP,
    E.UNKNOWN_MEMBER_ID: Action.JOIN_ANEW,
    E.FENCED_INSTANCE_ID: Action.FATAL,
}

_BY_API: Final[Mapping[ApiKey, Mapping[int, Action]]] = {
    # The broker has chosen a member id, and wants to hear it.
    ApiKey.JOIN_GROUP: {**_MEMBER, E.MEMBER_ID_REQUIRED: Action.REJOIN},
    ApiKey.SYNC_GROUP: _MEMBER,
    ApiKey.HEARTBEAT: _MEMBER,
    ApiKey.OFFSET_COMMIT: {**_MEMBER, E.STALE_MEMBER_EPOCH: Action.REJOIN},
    # Of a group that is just changing: where it has come to is to be known, and is not nowhere.
    ApiKey.OFFSET_FETCH: {
        E.REBALANCE_IN_PROGRESS: Action.RETRY,
        E.ILLEGAL_GENERATION: Action.RETRY,
        E.STALE_MEMBER_EPOCH: Action.RETRY,
        E.UNKNOWN_MEMBER_ID: Action.RETRY,
    },
    ApiKey.PRODUCE: {**_NOT_PERMITTED, E.DUPLICATE_SEQUENCE_NUMBER: Action.DONE},
    # Of the older protocol alone, in which a timeout looks as a newer producer does.
    ApiKey.ADD_PARTITIONS_TO_TXN: _LOST_IDENTITY,
    ApiKey.ADD_OFFSETS_TO_TXN: _LOST_IDENTITY,
    ApiKey.TXN_OFFSET_COMMIT: {
        **_NOT_PERMITTED,
        E.INVALID_PRODUCER_ID_MAPPING: Action.FATAL,
        # These three are of version 6.
        E.GROUP_ID_NOT_FOUND: Action.ABORT,
        E.STALE_MEMBER_EPOCH: Action.ABORT,
        E.UNKNOWN_TOPIC_ID: Action.REFRESH,
    },
    # To a commit this says that the coordinator has aborted: an abort takes over the new epoch.
    ApiKey.END_TXN: {E.INVALID_TXN_STATE: Action.ABORT},
    ApiKey.INIT_PRODUCER_ID: {
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Action.FAIL,
        E.CLUSTER_AUTHORIZATION_FAILED: Action.FAIL,
        E.INVALID_TRANSACTION_TIMEOUT: Action.FAIL,
        E.INVALID_REQUEST: Action.FAIL,
    },
}

_OTHERWISE: Final[Mapping[ApiKey, Action]] = {
    ApiKey.PRODUCE: Action.ABORT,
    ApiKey.ADD_PARTITIONS_TO_TXN: Action.ABORT,
    ApiKey.ADD_OFFSETS_TO_TXN: Action.ABORT,
    ApiKey.TXN_OFFSET_COMMIT: Action.ABORT,
    ApiKey.END_TXN: Action.FATAL,
    ApiKey.INIT_PRODUCER_ID: Action.FATAL,
}
"""For codes that stand nowhere else; those of all other APIs are raised to the user."""


def action(code: int, api: ApiKey | None, *, aborting: bool = False) -> Action:
    """What to do. `aborting`: the code answers an abort, and what that cannot settle is fatal."""
    found = _ANYWHERE.get(code, Action.FAIL)
    if api is not None:
        by_default = found if code in _ANYWHERE else _OTHERWISE.get(api, Action.FAIL)
        found = _BY_API.get(api, {}).get(code, by_default)
    return Action.FATAL if aborting and found is Action.ABORT else found


_MAY_HAVE_HAPPENED: Final = frozenset(
    {
        E.UNKNOWN_SERVER_ERROR,
        E.REQUEST_TIMED_OUT,
        E.NETWORK_EXCEPTION,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        E.KAFKA_STORAGE_ERROR,
        # A leader or coordinator that is replaced says so for requests under way, too.
        E.NOT_LEADER_OR_FOLLOWER,
        E.NOT_COORDINATOR,
        E.COORDINATOR_NOT_AVAILABLE,
    }
)
_READS: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
    }
)


def outcome_of(code: int, api: ApiKey | None) -> Literal["not applied", "unknown"]:
    """Whether a request that was answered so may have taken effect all the same."""
    return "unknown" if code in _MAY_HAVE_HAPPENED and api not in _READS else "not applied"


_NOT_ALLOWED: Final = "not allowed for this user"

EXPLANATIONS: Final[Mapping[int, str]] = {
    E.UNKNOWN_SERVER_ERROR: "the broker failed; its log says why",
    E.OFFSET_OUT_OF_RANGE: "the log does not reach to that offset",
    E.UNKNOWN_TOPIC_OR_PARTITION: "the broker does not know it",
    E.MESSAGE_TOO_LARGE: "a batch is larger than the topic allows (max.message.bytes)",
    E.OFFSET_METADATA_TOO_LARGE: "the metadata of an offset is longer than the broker allows",
    E.RECORD_LIST_TOO_LARGE: "a batch is larger than the topic's segments (segment.bytes)",
    E.INVALID_TOPIC_EXCEPTION: (
        "not a name for a topic: use up to 249 letters, digits, '.', '_' and '-'"
    ),
    E.INVALID_RECORD: "a record breaks a rule of the topic (a compacted topic needs keys)",
    E.INVALID_TIMESTAMP: "a timestamp is out of the range that the topic allows",
    E.TOPIC_ALREADY_EXISTS: "there is a topic of that name already",
    E.ILLEGAL_GENERATION: "the group has rebalanced since; this member is out of date",
    E.UNKNOWN_MEMBER_ID: "the group knows no such member, or not any more",
    E.REBALANCE_IN_PROGRESS: "the group is rebalancing",
    E.FENCED_INSTANCE_ID: "another member with the same group.instance.id has taken over",
    E.STALE_MEMBER_EPOCH: "the group has given this member a newer epoch",
    E.UNSTABLE_OFFSET_COMMIT: "an open transaction is committing offsets of it",
    E.GROUP_ID_NOT_FOUND: "there is no such group",
    E.GROUP_DELETION_FAILED: "the group could not be deleted; the broker's log says why",
    E.UNKNOWN_TOPIC_ID: "the broker knows no topic of that id, or not yet",
    E.REBOOTSTRAP_REQUIRED: (
        "another broker answers at this address than the one that was meant: connect again through "
        "the bootstrap servers"
    ),
    E.NON_EMPTY_GROUP: "the group has members; stop them first",
    E.INVALID_GROUP_ID: "not a name for a group",
    E.INCONSISTENT_GROUP_PROTOCOL: (
        "the group's members have no strategy in common with this one "
        "(partition.assignment.strategy), or are no consumers"
    ),
    E.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms is not in the range that the broker allows "
        "(group.min.session.timeout.ms to group.max.session.timeout.ms)"
    ),
    E.GROUP_MAX_SIZE_REACHED: "the group is full (group.max.size)",
    E.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not take that compression here",
    E.COORDINATOR_NOT_AVAILABLE: "no broker coordinates it yet",
    E.TOPIC_AUTHORIZATION_FAILED: _NOT_ALLOWED,
    E.GROUP_AUTHORIZATION_FAILED: _NOT_ALLOWED,
    E.CLUSTER_AUTHORIZATION_FAILED: _NOT_ALLOWED,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user may not use that transactional id",
    E.POLICY_VIOLATION: "forbidden by a policy of the broker",
    E.OUT_OF_ORDER_SEQUENCE_NUMBER: "a batch is missing in front of this one",
    E.UNKNOWN_PRODUCER_ID: "the broker has forgotten this producer",
    E.INVALID_PRODUCER_EPOCH: "a newer producer has taken over, or the transaction timed out",
    E.PRODUCER_FENCED: "another producer with the same transactional id has taken over",
    E.INVALID_TXN_STATE: "the transaction is not in a state for this; it may have timed out",
    E.INVALID_PRODUCER_ID_MAPPING: (
        "the broker does not know this producer any more: its transactional id was not used for "
        "longer than transactional.id.expiration.ms, or another producer has it by now"
    ),
    E.INVALID_TRANSACTION_TIMEOUT: (
        "transaction.timeout.ms is 0 or more than the broker allows (transaction.max.timeout.ms)"
    ),
    E.CONCURRENT_TRANSACTIONS: "the transaction before this one is still being finished",
    E.TRANSACTION_ABORTABLE: "the transaction has to be aborted",
    E.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id",
}
"""For the answers in which a broker says nothing but the code."""
