"""What tests of the simulator share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Brokers that find a power cut's traces say so a thousand times; clients that go back, too."""
    logger = logging.getLogger("onceflow")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
