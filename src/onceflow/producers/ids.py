"""Producer ids: never the same one twice, even after a crash.

Ids are claimed in blocks. The only state is the lowest unclaimed id, a fold over the log of claims.
A claim names the id that it expects to be the lowest (compare and set). Its record is durable
before a client sees an id of the block, and a start skips what was left of the last block.
"""

from __future__ import annotations

from typing import NamedTuple

from onceflow.errors import InvariantViolated, OnceflowError

BLOCK_SIZE = 1000
LAST_PRODUCER_ID = 2**63 - 1


class ProducerIdsExhausted(OnceflowError):
    """Every possible producer id has been claimed."""


class ClaimConflict(OnceflowError):
    """Another claim came first: look at the number again."""


class Block(NamedTuple):
    """The ids from `start` on, `size` of them."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The id behind the last."""
        return self.start + self.size


class IdBlocks:
    """The fold over all claims."""

    __slots__ = ("_next_unclaimed",)

    def __init__(self) -> None:
        self._next_unclaimed = 0

    @property
    def next_unclaimed(self) -> int:
        return self._next_unclaimed

    def claim(self, expected: int) -> Block:
        """The block to write into the log, if `expected` is still the lowest unclaimed id. Changes
        nothing: `apply` does, once the claim has its place in the log."""
        if expected != self._next_unclaimed:
            raise ClaimConflict(
                f"the claim expects {expected} to be the next producer id, "
                f"but that is {self._next_unclaimed}"
            )
        left = LAST_PRODUCER_ID + 1 - expected
        if left <= 0:
            raise ProducerIdsExhausted(
                f"all producer ids up to {LAST_PRODUCER_ID} have been claimed; "
                "producers need a new cluster"
            )
        return Block(expected, min(BLOCK_SIZE, left))

    def apply(self, block: Block) -> None:
        """Applies a claim from the log. There may be a gap before it: only the last claim matters,
        and the log may have been compacted."""
        if block.size < 1 or block.start < self._next_unclaimed:
            raise InvariantViolated(
                f"a producer id is claimed once: {block} in the log of claims, "
                f"where {self._next_unclaimed} is the lowest that may be"
            )
        self._next_unclaimed = block.end

    def skip_to(self, producer_id: int) -> None:
        """Skips the ids below, which are in use although the log of claims does not say so."""
        self._next_unclaimed = max(self._next_unclaimed, producer_id)


class OpenBlock:
    """Hands out the ids of a claimed block; no client may see one before the claim is durable."""

    __slots__ = ("_end", "_next")

    def __init__(self, block: Block) -> None:
        self._next, self._end = block.start, block.end

    def take(self) -> int | None:
        """The next id; None if the block is used up and another must be claimed."""
        if self._next == self._end:
            return None
        self._next += 1
        return self._next - 1
