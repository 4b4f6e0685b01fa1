"""The versions of each API that the client speaks, and the choice of one for a broker.

Code knows the newest of them only; `recast` carries messages to and from the version that is
chosen. The ranges leave out versions of another shape (topics by id, single groups, all topics
named by an empty list), which brokers of today no longer need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from onceflow.wire.api import ApiKey


class Versions(NamedTuple):
    """A range of versions, both ends included."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


SPOKEN: Final[Mapping[ApiKey, Versions]] = {
    ApiKey.PRODUCE: Versions(9, 12),
    ApiKey.FETCH: Versions(4, 12),
    ApiKey.LIST_OFFSETS: Versions(1, 7),
    ApiKey.METADATA: Versions(4, 12),
    ApiKey.OFFSET_COMMIT: Versions(5, 8),
    ApiKey.OFFSET_FETCH: Versions(8, 8),
    ApiKey.FIND_COORDINATOR: Versions(4, 4),
    ApiKey.DESCRIBE_GROUPS: Versions(0, 5),
    ApiKey.LIST_GROUPS: Versions(0, 4),
    ApiKey.API_VERSIONS: Versions(0, 4),
    ApiKey.CREATE_TOPICS: Versions(4, 7),
    ApiKey.DELETE_TOPICS: Versions(1, 5),
    ApiKey.DESCRIBE_CONFIGS: Versions(1, 4),
    ApiKey.CREATE_PARTITIONS: Versions(0, 3),
    ApiKey.DELETE_GROUPS: Versions(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Versions(0, 1),
}


def choose(ours: Versions, theirs: Versions | None) -> int | None:
    """The newest version that both sides speak; None when there is none."""
    if theirs is None:
        return None
    newest = min(ours.newest, theirs.newest)
    return newest if newest >= max(ours.oldest, theirs.oldest) else None
