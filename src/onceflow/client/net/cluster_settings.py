"""What a client's connections to a cluster are like. Apart from them, because the settings of
blocking clients need it too, and a forked worker has no use for an event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onceflow.client.net.retry import RetryPolicy
from onceflow.client.net.security import PLAINTEXT, Security


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """A client's timeouts, its id and its security."""

    client_id: str = "onceflow"
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    metadata_max_age_s: float = 300.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    security: Security = PLAINTEXT
