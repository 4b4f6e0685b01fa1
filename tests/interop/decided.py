"""When what was committed is there for readers, too."""

from __future__ import annotations

from typing import Final

from onceflow.blocking import Admin
from tests.interop.harness import eventually

ON_THEIR_WAY: Final = ("PrepareCommit", "PrepareAbort")


def until_decided(bootstrap: str) -> None:
    """Apache Kafka answers an end when it is decided. The markers, for which readers of committed
    records wait, follow: whoever reads up to what is the end so far may come before them."""
    with Admin(bootstrap) as admin:
        eventually(
            lambda: [
                each.transactional_id for each in admin.list_transactions(states=ON_THEIR_WAY)
            ],
            lambda found: not found,
        )
