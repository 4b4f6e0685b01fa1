"""The versions of each API that the client speaks, and the choice of one for a broker.

The client's code knows only the newest of them; `recast` converts messages to and from the chosen
version. The ranges leave out versions of another shape (topics by id, single groups, all topics
named by an empty list), which today's brokers no longer need. Produce and Fetch are written and
read by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceflow.wire import (
    END_WITH_NEW_EPOCH_FROM,
    IMPLICIT_OFFSETS_FROM,
    IMPLICIT_PRODUCE_FROM,
    ApiKey,
)


class VersionRange(NamedTuple):
    """A range of versions, both ends included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


SPOKEN: Final[Mapping[ApiKey, VersionRange]] = {
    ApiKey.PRODUCE: VersionRange(3, 12),
    ApiKey.FETCH: VersionRange(4, 12),
    ApiKey.LIST_OFFSETS: VersionRange(1, 7),
    ApiKey.METADATA: VersionRange(4, 12),
    ApiKey.OFFSET_COMMIT: VersionRange(5, 8),
    ApiKey.OFFSET_FETCH: VersionRange(8, 8),
    ApiKey.FIND_COORDINATOR: VersionRange(4, 4),
    # Older ones know no static members, and let a member join twice when an answer is lost.
    ApiKey.JOIN_GROUP: VersionRange(5, 9),
    ApiKey.SYNC_GROUP: VersionRange(3, 5),
    ApiKey.HEARTBEAT: VersionRange(3, 4),
    ApiKey.LEAVE_GROUP: VersionRange(3, 5),
    ApiKey.DESCRIBE_GROUPS: VersionRange(0, 5),
    ApiKey.LIST_GROUPS: VersionRange(0, 4),
    ApiKey.API_VERSIONS: VersionRange(0, 4),
    ApiKey.CREATE_TOPICS: VersionRange(4, 7),
    ApiKey.DELETE_TOPICS: VersionRange(1, 5),
    ApiKey.DELETE_RECORDS: VersionRange(0, 2),
    # Older ones cannot name the producer id and epoch that are to be renewed.
    ApiKey.INIT_PRODUCER_ID: VersionRange(3, 6),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: VersionRange(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: VersionRange(0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: VersionRange(0, 4),
    ApiKey.END_TXN: VersionRange(0, 5),
    ApiKey.WRITE_TXN_MARKERS: VersionRange(1, 1),
    # Older ones do not carry the generation that fences a member of a group.
    ApiKey.TXN_OFFSET_COMMIT: VersionRange(3, 5),
    ApiKey.DESCRIBE_CONFIGS: VersionRange(1, 4),
    ApiKey.CREATE_PARTITIONS: VersionRange(0, 3),
    ApiKey.DELETE_GROUPS: VersionRange(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: VersionRange(0, 1),
    ApiKey.OFFSET_DELETE: VersionRange(0, 0),
    ApiKey.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: VersionRange(0, 0),
    ApiKey.LIST_TRANSACTIONS: VersionRange(0, 1),
}

NEWEST_WITHOUT_TRANSACTION_V2: Final[Mapping[ApiKey, int]] = {
    ApiKey.PRODUCE: IMPLICIT_PRODUCE_FROM - 1,
    ApiKey.TXN_OFFSET_COMMIT: IMPLICIT_OFFSETS_FROM - 1,
    ApiKey.END_TXN: END_WITH_NEW_EPOCH_FROM - 1,
}
"""Newer versions imply that partitions join a transaction implicitly and that every transaction
gets an epoch of its own. Brokers offer them at any level of `transaction.version`, so a transaction
of the older protocol must not use them."""


def choose(ours: VersionRange, theirs: VersionRange | None) -> int | None:
    """The newest version that both sides speak; None when there is none."""
    if theirs is None:
        return None
    newest = min(ours.newest, theirs.newest)
    return newest if newest >= max(ours.oldest, theirs.oldest) else None
