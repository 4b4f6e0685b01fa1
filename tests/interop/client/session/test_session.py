"""Sessions on both brokers, answers compared: the loop, what aborts it, who fences whom, and a
rebalance inside of a transaction."""

from __future__ import annotations

import pytest

from tests.interop.client.consumer.polled_consumers import Script, script
from tests.interop.client.session.scripts import (
    SCRIPTS,
    rebalance_inside_a_transaction,
    the_same_without_the_generation,
)
from tests.interop.harness import Compare

pytestmark = pytest.mark.interop


def test_a_rebalance_inside_of_a_transaction(compare: Compare) -> None:
    compare(rebalance_inside_a_transaction)


def test_without_the_generation_the_same_doubles(compare: Compare) -> None:
    """What the generation is for: offsets that only name the group are taken from anybody, and
    epochs fence nobody who has another transactional id."""
    compare(the_same_without_the_generation)


@pytest.mark.parametrize("work", SCRIPTS, ids=lambda work: work.__name__)
def test_sessions(compare: Compare, work: Script) -> None:
    compare(script(work))
