"""Which topics may be made or grown: names, counts and assignments, judged as Apache Kafka does.

Every function is pure and returns None, or the refusal that goes on the wire: Kafka's error code
and a message. There is one broker here, so a partition has one replica, and it is on this node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from onceflow.broker.requests import RequestRefusal
from onceflow.wire import ErrorCode

LONGEST_NAME: Final = 249
MOST_PARTITIONS_PER_REQUEST: Final = 10_000
USE_DEFAULT: Final = -1
"""As a count of partitions or replicas: whatever the broker's default is."""

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_METADATA_TOPIC: Final = "__cluster_metadata"


class Assignment(NamedTuple):
    """A partition and the brokers that the client wants it on."""

    partition: int
    brokers: Sequence[int]


def name_refusal(name: str) -> RequestRefusal | None:
    """A topic name that Kafka would not take."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > LONGEST_NAME:
        reason = f"the length of '{name}' is longer than the max allowed length {LONGEST_NAME}"
    elif not _LEGAL_NAME.fullmatch(name):
        reason = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    else:
        return None
    return RequestRefusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def new_name_refusal(name: str, existing: Collection[str]) -> RequestRefusal | None:
    """A topic that cannot be made because of its name, given the topics that there are."""
    if name == _METADATA_TOPIC:
        return RequestRefusal(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
        )
    if name in existing:
        return RequestRefusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if refusal := name_refusal(name):
        return refusal
    if others := collisions(name, existing):
        return RequestRefusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {', '.join(others)}",
        )
    return None


def collisions(name: str, existing: Iterable[str]) -> list[str]:
    """Topics that differ from the name in '.' and '_' only: their metrics would be one."""
    if "." not in name and "_" not in name:
        return []
    alike = folded(name)
    return sorted(other for other in existing if folded(other) == alike)


def folded(name: str) -> str:
    """What the metrics of a topic go by."""
    return name.replace(".", "_")


def layout_refusal(
    num_partitions: int, replication_factor: int, assignments: Sequence[Assignment], node_id: int
) -> RequestRefusal | None:
    """Counts or assignments that a new topic cannot have."""
    if assignments:
        return _manual_refusal(num_partitions, replication_factor, assignments, node_id)
    if replication_factor == 0 or replication_factor < USE_DEFAULT:
        return RequestRefusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if num_partitions == 0 or num_partitions < USE_DEFAULT:
        return RequestRefusal(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    if replication_factor > 1:
        return RequestRefusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target "
            f"replication factor of {replication_factor} cannot be reached because only "
            "1 broker(s) are registered.",
        )
    return None


def partition_count(num_partitions: int, assignments: Sequence[Assignment], default: int) -> int:
    """How many partitions a new topic gets, once its layout was found good."""
    if assignments:
        return len(assignments)
    return default if num_partitions == USE_DEFAULT else num_partitions


def internal_topic_refusal(name: str) -> RequestRefusal:
    """Why clients may not change a topic in which the broker keeps its state."""
    return RequestRefusal(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"{name} is the broker's own: clients may read it, and change nothing of it.",
    )


def own_topic_difference(
    name: str,
    count: int,
    configs: Sequence[tuple[str, str | None]],
    own_count: int,
    own_configs: Mapping[str, str],
) -> RequestRefusal | None:
    """Why a client's request does not make one of the broker's own topics as the broker does: by
    their number its records find their partition, and by its policy they stay."""
    if count != own_count:
        return RequestRefusal(
            ErrorCode.INVALID_PARTITIONS,
            f"{name} is the broker's own and has {own_count} partition(s), not {count}: "
            "ask for that many, or for -1.",
        )
    others = sorted({key for key, value in configs if own_configs.get(key) != value})
    if others:
        return RequestRefusal(
            ErrorCode.INVALID_CONFIG,
            f"{name} is the broker's own and its configs are fixed: leave out {', '.join(others)}.",
        )
    return None


def increase_refusal(
    name: str, current: int, count: int, assignments: Sequence[Sequence[int]] | None, node_id: int
) -> RequestRefusal | None:
    """Why a topic cannot be brought from `current` to `count` partitions.

    `assignments` are the brokers of each partition to add; None leaves the choice to the broker.
    """
    if count == current:
        return RequestRefusal(
            ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s)."
        )
    if count < current:
        return RequestRefusal(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {current} partition(s); "
            f"{count} would not be an increase.",
        )
    added = count - current
    if assignments is None:
        return total_refusal([added])
    if len(assignments) != added:
        return RequestRefusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), "
            f"but only {len(assignments)} assignment(s) were specified.",
        )
    return _first(_brokers_refusal(brokers, node_id) for brokers in assignments)


def total_refusal(counts: Iterable[int]) -> RequestRefusal | None:
    """More new partitions than one request may ask for; refuses each topic of the request."""
    if sum(counts) > MOST_PARTITIONS_PER_REQUEST:
        return RequestRefusal(
            ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
        )
    return None


def _manual_refusal(
    num_partitions: int, replication_factor: int, assignments: Sequence[Assignment], node_id: int
) -> RequestRefusal | None:
    counts = (("replication factor", replication_factor), ("numPartitions", num_partitions))
    for what, value in counts:
        if value != USE_DEFAULT:
            return RequestRefusal(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    seen: set[int] = set()
    for partition, brokers in assignments:
        if partition in seen:
            return RequestRefusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {partition}",
            )
        seen.add(partition)
        if refusal := _brokers_refusal(brokers, node_id):
            return refusal
    if seen != set(range(len(seen))):
        return RequestRefusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return None


def _brokers_refusal(brokers: Sequence[int], node_id: int) -> RequestRefusal | None:
    what = None if brokers else "an empty replica list"
    previous = None
    # In Kafka's order, so that of two faults the same one is named.
    for broker in sorted(brokers):
        if broker != node_id:
            what = f"broker {broker}, but no such broker is registered"
            break
        if broker == previous:
            what = f"the broker {broker} more than once"
            break
        previous = broker
    if what is None:
        return None
    return RequestRefusal(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {what}."
    )


def _first(refusals: Iterable[RequestRefusal | None]) -> RequestRefusal | None:
    return next((refusal for refusal in refusals if refusal is not None), None)
