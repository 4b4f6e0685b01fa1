"""What a consumer can raise besides what reading can."""

from __future__ import annotations

from onceflow.client.errors.requests import ClientError


class ConsumerError(ClientError):
    """Root of what groups and the wrong use of a consumer raise."""


class WrongUse(ConsumerError):
    """The consumer cannot do this, as it was set up or in the state that it is in."""


class CommitFailed(ConsumerError):
    """Nothing was committed: the member is out of its group, and others may have its partitions.

    What was read since the last commit will be read again, by whoever has the partitions now.
    """

    advice = "do not commit that again: poll, and go on with what comes"


class RebalanceInProgress(CommitFailed):
    """Nothing was committed: the group is handing out its partitions anew."""

    advice = "poll, which takes part in that; then commit again what is still assigned"


class FencedMember(ConsumerError):
    """Another consumer with the same `group.instance.id` has taken over."""

    advice = "stop: the other one does the work now, or give each its own group.instance.id"


class ConsumerClosed(WrongUse):
    """The consumer was closed, or not started yet."""

    advice = "use it inside `async with Consumer(...)`"
