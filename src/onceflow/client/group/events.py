"""What is logged of a member of a group: when it comes and goes, and what it has."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from onceflow.client.codec import GroupMember, OffsetToCommit
from onceflow.client.events import GROUPS, Names
from onceflow.client.group.member import MemberMachine
from onceflow.client.group.requests import Joined
from onceflow.types import TopicPartition

Partitions = Collection[TopicPartition]


def _who(machine: MemberMachine) -> dict[str, object]:
    membership = machine.membership
    return {
        "group": machine.group_id,
        "member_id": membership.member_id,
        "instance_id": machine.instance_id,
        "generation": membership.generation,
    }


def log_joined(machine: MemberMachine, answer: Joined) -> None:
    GROUPS.info(
        "joined",
        "joined group %(group)r, generation %(generation)d, as %(role)s (%(strategy)s)",
        **_who(machine),
        role="its leader" if answer.is_leader else "a member",
        strategy=answer.strategy,
    )


def log_left(member: GroupMember, why: str, *, stays: bool) -> None:
    """A static member stays until its session ends."""
    message = "left group %(group)r: %(reason)s"
    GROUPS.info(
        "left",
        message + "; its place is kept for a while" if stays else message,
        group=member.group_id,
        member_id=member.member_id,
        instance_id=member.instance_id,
        reason=why,
    )


def log_leave_failed(member: GroupMember, error: object) -> None:
    GROUPS.info(
        "not told",
        "a member left group %(group)r, and its LeaveGroup failed: %(reason)s",
        group=member.group_id,
        member_id=member.member_id,
        reason=str(error),
    )


def log_missing_topics(machine: MemberMachine, reason: str) -> None:
    """Of what was subscribed to."""
    GROUPS.warning(
        "missing",
        "group %(group)r has subscribed to topics that do not exist: %(reason)s",
        **_who(machine),
        reason=reason,
    )


def log_overslept(machine: MemberMachine, why: str) -> None:
    GROUPS.warning(
        "overslept",
        "leaving group %(group)r: %(reason)s. Poll more often, ask for fewer records at once "
        "(max.poll.records), or allow more time",
        **_who(machine),
        reason=why,
    )


def log_rejoining(machine: MemberMachine, error: object) -> None:
    GROUPS.info(
        "again", "joining group %(group)r again: %(reason)s", **_who(machine), reason=str(error)
    )


def log_heartbeat_refused(machine: MemberMachine, error: object) -> None:
    """A heartbeat was refused."""
    GROUPS.info("refused", "%(reason)s", **_who(machine), reason=str(error))


def log_watch_failed(machine: MemberMachine, error: object) -> None:
    GROUPS.info(
        "unwatched",
        "group %(group)r: the metadata of its topics cannot be read: %(reason)s",
        group=machine.group_id,
        reason=str(error),
    )


def log_assigned(machine: MemberMachine, added: Partitions, held: Partitions) -> None:
    GROUPS.info(
        "assigned",
        "group %(group)r: this member is assigned %(partitions)s",
        **_who(machine),
        partitions=Names.of(sorted(added)),
        held=len(held),
    )


def log_revoked(machine: MemberMachine, partitions: Partitions) -> None:
    GROUPS.info(
        "revoked",
        "group %(group)r: this member gives up %(partitions)s",
        **_who(machine),
        partitions=Names.of(sorted(partitions)),
    )


def log_lost(machine: MemberMachine, partitions: Partitions) -> None:
    GROUPS.warning(
        "lost",
        "group %(group)r: this member has lost %(partitions)s: %(reason)s",
        **_who(machine),
        partitions=Names.of(sorted(partitions)),
        reason=machine.why_out,
    )


def log_committed(group_id: str, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
    if GROUPS.wants(logging.DEBUG):
        GROUPS.debug(
            "committed",
            "group %(group)r has committed %(offsets)s",
            group=group_id,
            offsets={str(partition): at.offset for partition, at in offsets.items()},
        )


def log_commit_failed(group_id: str, error: object) -> None:
    GROUPS.warning(
        "uncommitted",
        "positions of group %(group)r were not committed: %(reason)s",
        group=group_id,
        reason=str(error),
    )
