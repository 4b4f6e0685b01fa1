"""What unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import onceflow


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Where a real broker listens that the tests of a file share."""
    with onceflow.Broker() as broker:
        yield broker.bootstrap
