"""A group as it stands: its members, its generation and which of five states it is in.

The states and the ways between them are a table; a step that is not in it raises. Requests that
wait for an answer are known here by number only.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from onceflow.errors import InvariantViolated

CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupState(Enum):
    """Where a group stands; the values are the names that Kafka's tools print."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class Protocol(NamedTuple):
    """An assignment strategy that a member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class MemberMetadata:
    """One client in a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join_ticket: int | None = None
    """The JoinGroup request that waits for the generation to form."""
    sync_ticket: int | None = None
    """The SyncGroup request that waits for the leader's assignment."""
    is_new: bool = False
    """It has had no JoinGroup response yet, so it does not know its id and sends no heartbeats."""

    def metadata(self, protocol_name: str) -> bytes:
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        raise InvariantViolated(
            f"members-support-the-selected-protocol: {self.member_id} lacks {protocol_name}"
        )


class InitialDelay(NamedTuple):
    """How long the first generation of a group is held back."""

    delay_ms: int
    remaining_ms: int


@dataclass(slots=True)
class Group:
    """Everything that the coordinator knows of a group, except its offsets."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    """None for a group that only keeps offsets."""
    protocol_name: str | None = None
    leader: str | None = None
    state_since_ms: int | None = None
    members: dict[str, MemberMetadata] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by group instance id."""
    pending: dict[str, None] = field(default_factory=dict)
    """Member ids that were handed out and not used yet, in order."""
    pending_sync: dict[str, None] = field(default_factory=dict)
    """Members that have not sent SyncGroup in this generation, in order."""
    new_member_added: bool = False
    initial_delay: InitialDelay | None = None
    stored_generation: int = -1
    """The last generation whose assignment went to the log."""
    subscribed_topics: frozenset[str] | None = None
    """The topics that a consumer group reads; None if its subscriptions are not known."""

    # --- questions ----------------------------------------------------------------------------

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def awaiting_join(self) -> int:
        return sum(member.join_ticket is not None for member in self.members.values())

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and self.awaiting_join == len(self.members)

    @property
    def is_initial_rebalance(self) -> bool:
        return (
            self.state is GroupState.PREPARING_REBALANCE and self.previous_state is GroupState.EMPTY
        )

    def supports(self, protocol_type: str, names: frozenset[str]) -> bool:
        """Whether a client with these protocols can be a member together with all the others."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and names)
        shared = names & self._common_protocols() if self.members else names
        return protocol_type == self.protocol_type and bool(shared)

    def is_subscribed_to(self, topic: str) -> bool:
        """Where the subscriptions are not known, a consumer group counts as subscribed to all."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def _common_protocols(self) -> frozenset[str]:
        names = [{each.name for each in member.protocols} for member in self.members.values()]
        return frozenset(set.intersection(*names) if names else ())

    # --- changes ------------------------------------------------------------------------------

    def transition(self, state: GroupState, now_ms: int) -> None:
        """Goes to another state; raises if the table does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise InvariantViolated(
                f"groups-follow-the-state-table: {self.group_id} cannot go from "
                f"{self.state.value} to {state.value}"
            )
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = now_ms

    def add(self, member: MemberMetadata, protocol_type: str) -> None:
        """Adds a member; the first one sets the group's protocol type and leads it."""
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.pending.pop(member.member_id, None)

    def remove(self, member_id: str) -> MemberMetadata | None:
        """Removes a member or a pending id; the oldest remaining member inherits leadership."""
        member = self.members.pop(member_id, None)
        if member is not None and member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending.pop(member_id, None)
        self.pending_sync.pop(member_id, None)
        return member

    def rename(self, member: MemberMetadata, new_id: str) -> None:
        """Gives a static member another id; it keeps its place in the group."""
        old_id = member.member_id
        del self.members[old_id]
        member.member_id = new_id
        self.members[new_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            del self.pending_sync[old_id]
            self.pending_sync[new_id] = None

    def elect_joined_leader(self) -> bool:
        """Keeps a leader that has joined, or chooses one; False when no member has joined."""
        if self.leader is not None and self.members[self.leader].join_ticket is not None:
            return True
        for member in self.members.values():
            if member.join_ticket is not None:
                self.leader = member.member_id
                return True
        return False

    def select_protocol(self) -> str:
        """The protocol that most members prefer among those that all of them support."""
        candidates = self._common_protocols()
        votes = Counter(
            next((each.name for each in member.protocols if each.name in candidates), None)
            for member in self.members.values()
        )
        selected = votes.most_common(1)[0][0] if votes else None
        if selected is None:
            raise InvariantViolated(
                f"members-share-a-protocol: those of {self.group_id} have none in common"
            )
        return selected

    def start_generation(self, now_ms: int) -> None:
        """Begins the next generation, with the present members."""
        self.generation += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.refresh_subscribed_topics()
        self.transition(
            GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY,
            now_ms,
        )
        self.pending_sync.clear()
        self.initial_delay = None

    def refresh_subscribed_topics(self) -> None:
        """Reads the topics from the members' subscriptions, if they are those of consumers."""
        self.subscribed_topics = None
        if not self.uses_consumer_protocol:
            return
        topics: frozenset[str] = frozenset()
        for member in self.members.values():
            if self.protocol_name is None:
                return
            found = subscribed_topics(member.metadata(self.protocol_name))
            if found is None:
                return
            topics |= found
        self.subscribed_topics = topics


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that a member's metadata names; None where it is not a consumer's subscription.

    Every version of the embedded consumer protocol starts with the fields of version 0; the topics
    are read from those, and what follows is the clients' business alone. Bytes of some other
    protocol give no answer rather than an error.
    """
    try:
        version, count = struct.unpack_from(">hi", metadata, 0)
        if version < 0 or count < 0:
            return None
        topics = []
        at = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, at)
            name = metadata[at + 2 : at + 2 + length]
            if length < 0 or len(name) < length:
                return None
            topics.append(name.decode())
            at += 2 + length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
