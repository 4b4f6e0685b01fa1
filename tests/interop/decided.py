"""When what was committed is there for readers, too."""

from __future__ import annotations

from typing import Final

from onceflow import ClientError
from onceflow.blocking import Admin
from tests.interop.harness import eventually

ON_THEIR_WAY: Final = ("PrepareCommit", "PrepareAbort")


def until_decided(bootstrap: str) -> None:
    """Apache Kafka answers an end when it is decided. The markers, for which readers of committed
    records wait, follow: whoever reads up to what is the end so far may come before them."""
    eventually(lambda: _undecided(bootstrap), lambda names: names == [])


def _undecided(bootstrap: str) -> list[str] | ClientError:
    """The transactional ids; or why nobody answered, as when a broker has just been killed."""
    try:
        with Admin(bootstrap) as admin:
            return [each.transactional_id for each in admin.list_transactions(states=ON_THEIR_WAY)]
    except ClientError as error:
        return error
