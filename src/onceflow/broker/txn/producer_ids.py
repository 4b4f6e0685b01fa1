"""Producer ids, handed out one by one from blocks that were claimed in the metadata log."""

from __future__ import annotations

from onceflow.broker.topics import Topics
from onceflow.log import Ticket
from onceflow.producers import OpenBlock


class ProducerIds:
    """Whoever is told an id has to await `tickets`, so that no crash makes it free again."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._block: OpenBlock | None = None
        self._claim: Ticket | None = None

    def take(self) -> int:
        """An id that nobody has had. Raises `ProducerIdsExhausted` when there is none left, and
        what `LogStore.append` does."""
        found = self._block.take() if self._block is not None else None
        while found is None:
            block, self._claim = self._topics.claim_producer_ids()
            self._block = OpenBlock(block)
            found = self._block.take()
        return found

    @property
    def tickets(self) -> list[Ticket]:
        """What has to be durable before the newest id may be told."""
        return [self._claim] if self._claim is not None and not self._claim.done else []
