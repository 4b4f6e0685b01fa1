"""Producer ids: claimed in blocks, never handed out twice, and their end."""

from __future__ import annotations

import pytest

from onceflow.errors import InvariantViolated
from onceflow.producers.ids import (
    LAST_PRODUCER_ID,
    Block,
    ClaimConflict,
    IdBlocks,
    OpenBlock,
    ProducerIdsExhausted,
)


def taken(block: Block) -> list[int]:
    source = OpenBlock(block)
    ids = []
    while (producer_id := source.take()) is not None:
        ids.append(producer_id)
    assert source.take() is None
    return ids


def test_blocks_of_a_thousand_follow_each_other() -> None:
    blocks = IdBlocks()
    claims = []
    for _ in range(3):
        block = blocks.claim(blocks.next_unclaimed)
        blocks.apply(block)
        claims.append(block)
    assert claims == [Block(0, 1000), Block(1000, 1000), Block(2000, 1000)]
    assert [producer_id for block in claims for producer_id in taken(block)] == list(range(3000))


def test_a_claim_changes_nothing_before_it_is_applied() -> None:
    blocks = IdBlocks()
    assert blocks.claim(0) == blocks.claim(0)
    assert blocks.next_unclaimed == 0


def test_the_second_of_two_claims_of_the_same_block_is_refused() -> None:
    blocks = IdBlocks()
    seen = blocks.next_unclaimed
    blocks.apply(blocks.claim(seen))
    with pytest.raises(ClaimConflict, match=r"expects 0 .* is 1000"):
        blocks.claim(seen)


def test_a_restart_skips_what_was_left_of_a_block() -> None:
    before = IdBlocks()
    claims = [before.claim(0)]
    before.apply(claims[0])
    assert OpenBlock(claims[0]).take() == 0
    after = IdBlocks()
    for claim in claims:
        after.apply(claim)
    assert after.claim(after.next_unclaimed) == Block(1000, 1000)


def test_the_last_block_is_as_long_as_ids_go_and_then_there_is_an_error() -> None:
    blocks = IdBlocks()
    blocks.apply(Block(LAST_PRODUCER_ID - 3, 1))
    last = blocks.claim(blocks.next_unclaimed)
    assert taken(last) == [LAST_PRODUCER_ID - 2, LAST_PRODUCER_ID - 1, LAST_PRODUCER_ID]
    blocks.apply(last)
    assert blocks.next_unclaimed == LAST_PRODUCER_ID + 1
    with pytest.raises(ProducerIdsExhausted, match=str(LAST_PRODUCER_ID)):
        blocks.claim(blocks.next_unclaimed)


def test_of_the_claims_only_the_last_one_matters() -> None:
    after = IdBlocks()
    after.apply(Block(0, 1000))
    after.apply(Block(4321, 1000))
    assert after.next_unclaimed == 5321


@pytest.mark.parametrize("block", [Block(999, 1000), Block(0, 1000), Block(1000, 0)])
def test_a_log_that_claims_an_id_twice_is_a_defect(block: Block) -> None:
    blocks = IdBlocks()
    blocks.apply(Block(0, 1000))
    with pytest.raises(InvariantViolated, match="a producer id is claimed once"):
        blocks.apply(block)
    assert blocks.next_unclaimed == 1000
