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


@pytest.fixture(params=[9, pytest.param(1, marks=pytest.mark.long)])
def every(request: pytest.FixtureRequest) -> int:
    """Of what a power cut can leave, each ninth image is looked at in each run, and all of them in
    a long one. Their kinds come in no order that a ninth would follow."""
    step: int = request.param
    return step
