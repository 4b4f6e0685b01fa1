"""When what was committed is there for readers, too."""

from __future__ import annotations

from typing import Final

from onceflow import ClientError
from onceflow.blocking import Admin
from tests.interop.harness import eventually

ON_THEIR_WAY: Final = ("PrepareCommit", "PrepareAbort")
OPEN: Final = ("Ongoing", *ON_THEIR_WAY)
ABORTED_SECONDS: Final = 60.0
"""By when a coordinator has aborted what a killed producer left open for its timeout."""


def until_decided(bootstrap: str) -> None:
    """Apache Kafka answers an end when it is decided. The markers, for which readers of committed
    records wait, follow: whoever reads up to what is the end so far may come before them."""
    eventually(lambda: _in_states(bootstrap, ON_THEIR_WAY), lambda names: names == [])


def until_none_is_open(bootstrap: str, prefix: str) -> None:
    """Of the transactional ids that begin so: what a killed producer has left open holds readers of
    committed records back, whatever others have written behind it, until it is aborted."""
    eventually(
        lambda: _in_states(bootstrap, OPEN, prefix),
        lambda names: names == [],
        seconds=ABORTED_SECONDS,
    )


def _in_states(
    bootstrap: str, states: tuple[str, ...], prefix: str = ""
) -> list[str] | ClientError:
    """The transactional ids; or why nobody answered, as when a broker has just been killed."""
    try:
        with Admin(bootstrap) as admin:
            names = [each.transactional_id for each in admin.list_transactions(states=states)]
            return [each for each in names if each.startswith(prefix)]
    except ClientError as error:
        return error
