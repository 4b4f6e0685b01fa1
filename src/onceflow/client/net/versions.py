"""The versions of each API that the client speaks, and the choice of one for a broker.

Code knows the newest of them only; `recast` carries messages to and from the version that is
chosen. The ranges leave out versions of another shape (topics by id, single groups, all topics
named by an empty list), which brokers of today no longer need. Produce and Fetch are written and
read by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceflow.wire import ApiKey


class Versions(NamedTuple):
    """A range of versions, both ends included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


SPOKEN: Final[Mapping[ApiKey, Versions]] = {
    ApiKey.PRODUCE: Versions(3, 12),
    ApiKey.FETCH: Versions(4, 12),
    ApiKey.LIST_OFFSETS: Versions(1, 7),
    ApiKey.METADATA: Versions(4, 12),
    ApiKey.OFFSET_COMMIT: Versions(5, 8),
    ApiKey.OFFSET_FETCH: Versions(8, 8),
    ApiKey.FIND_COORDINATOR: Versions(4, 4),
    # Older ones know no static members, and let a member join twice when an answer is lost.
    ApiKey.JOIN_GROUP: Versions(5, 9),
    ApiKey.SYNC_GROUP: Versions(3, 5),
    ApiKey.HEARTBEAT: Versions(3, 4),
    ApiKey.LEAVE_GROUP: Versions(3, 5),
    ApiKey.DESCRIBE_GROUPS: Versions(0, 5),
    ApiKey.LIST_GROUPS: Versions(0, 4),
    ApiKey.API_VERSIONS: Versions(0, 4),
    ApiKey.CREATE_TOPICS: Versions(4, 7),
    ApiKey.DELETE_TOPICS: Versions(1, 5),
    ApiKey.DELETE_RECORDS: Versions(0, 2),
    # Older ones cannot be told which identity is to be given a new epoch.
    ApiKey.INIT_PRODUCER_ID: Versions(3, 6),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Versions(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: Versions(0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: Versions(0, 4),
    ApiKey.END_TXN: Versions(0, 5),
    ApiKey.WRITE_TXN_MARKERS: Versions(1, 1),
    # Older ones do not carry the generation that fences a member of a group.
    ApiKey.TXN_OFFSET_COMMIT: Versions(3, 5),
    ApiKey.DESCRIBE_CONFIGS: Versions(1, 4),
    ApiKey.CREATE_PARTITIONS: Versions(0, 3),
    ApiKey.DELETE_GROUPS: Versions(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1),
    ApiKey.OFFSET_DELETE: Versions(0, 0),
    ApiKey.DESCRIBE_PRODUCERS: Versions(0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: Versions(0, 0),
    ApiKey.LIST_TRANSACTIONS: Versions(0, 1),
}

NEWEST_WITHOUT_TRANSACTION_V2: Final[Mapping[ApiKey, int]] = {
    ApiKey.PRODUCE: 11,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.END_TXN: 4,
}
"""Newer ones mean by themselves that partitions join a transaction unasked and that every
transaction gets an epoch of its own. Brokers offer them at any level of `transaction.version`, so
a transaction of the older protocol has to stay below."""


def choose(ours: Versions, theirs: Versions | None) -> int | None:
    """The newest version that both sides speak; None when there is none."""
    if theirs is None:
        return None
    newest = min(ours.newest, theirs.newest)
    return newest if newest >= max(ours.oldest, theirs.oldest) else None
