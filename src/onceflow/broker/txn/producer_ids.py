"""Producer ids, handed out one by one from blocks that were claimed in the metadata log."""

from __future__ import annotations

from onceflow.broker.topics import Topics
from onceflow.log import Ticket
from onceflow.producers import OpenBlock


class ProducerIds:
    """An answer with an id has to await `tickets`: otherwise a crash could make the id free again,
    and two producers would write under it."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._block: OpenBlock | None = None
        self._claim: Ticket | None = None

    def take(self) -> int:
        """An id that no producer has had. Raises `ProducerIdsExhausted` when none is left, and
        what `LogStore.append` does."""
        found = self._block.take() if self._block is not None else None
        while found is None:
            block, self._claim = self._topics.claim_producer_ids()
            self._block = OpenBlock(block)
            found = self._block.take()
        return found

    @property
    def tickets(self) -> list[Ticket]:
        """What has to be durable before an answer may contain the newest id."""
        return [self._claim] if self._claim is not None and not self._claim.done else []
