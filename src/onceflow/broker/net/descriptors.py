"""What the descriptors of the process are for: connections, files of segments, and a rest."""

from __future__ import annotations

from typing import Final, NamedTuple

from onceflow.broker.config import BrokerConfig

_OF_A_CONNECTION: Final = 2
"""The loop's socket and the duplicate that answers leave by."""
_KEPT: Final = 64
"""For the loop, jobs in the background, modules that are loaded when a request first needs them."""


class Shares(NamedTuple):
    """How many connections and open files of segments there may be."""

    connections: int
    files: int


def share_out(limit: int, config: BrokerConfig) -> Shares:
    """Connections get what is configured, but at most half of what is not kept back: a broker that
    cannot roll a segment is of no use to any of them."""
    kept = min(_KEPT + 2 * config.journal_files, limit // 4)
    left = limit - kept
    connections = max(1, min(config.max_connections, left // 2 // _OF_A_CONNECTION))
    return Shares(connections, max(4, left - connections * _OF_A_CONNECTION))
