"""Memory for answers that clients do not take: how much there may be of it for all together.

One connection holds little more than one large answer, because nothing more is read from it until
that has left. Many connections, each with one, are too much all the same. Then the client that was
the first not to take its answer has to go: it had the most time.
"""

from __future__ import annotations

from typing import Protocol


class Receiver(Protocol):
    """A connection with a large answer that has not left."""

    def close(self, reason: str) -> None:
        """Ends the connection."""
        ...


class AnswerMemory:
    """Belongs to one loop."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._held_bytes = 0
        self._held: dict[Receiver, int] = {}

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def hold(self, receiver: Receiver, size: int) -> None:
        """An answer cannot leave now; others may have to go for it."""
        self._held[receiver] = self._held.get(receiver, 0) + size
        self._held_bytes += size
        while self._held_bytes > self._total and len(self._held) > 1:
            first = next(iter(self._held))
            unsent = self._held[first]
            self.release(first)
            first.close(f"it does not take its answers ({unsent} bytes), and others wait for room")

    def release(self, receiver: Receiver) -> None:
        """All of them have left, or never will; one that held none may be released, too."""
        self._held_bytes -= self._held.pop(receiver, 0)
