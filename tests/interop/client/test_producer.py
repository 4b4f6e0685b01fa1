"""Our producer on every broker: what it says is there, confluent-kafka reads; exactly once too."""

from __future__ import annotations

import pytest

from tests.interop.client.producer_suite import PRODUCER_TESTS
from tests.interop.harness import BROKERS, Names

pytestmark = pytest.mark.interop


@pytest.fixture(params=BROKERS)
def names(request: pytest.FixtureRequest) -> Names:
    """Each broker in its turn."""
    return Names.fresh(request.getfixturevalue(request.param))


globals().update(PRODUCER_TESTS)
