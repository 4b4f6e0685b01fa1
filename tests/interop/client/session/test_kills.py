"""Sessions as processes under kill -9 and SIGSTOP, on both brokers; counted by a client of others.
`python -m tests.kill.session_campaign` does it for longer."""

from __future__ import annotations

import pytest

from tests.interop.client.session.strikes import Strikes

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("kills", [4, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("broker", ["apache_kafka", "onceflow_server"])
def test_sessions_are_killed_and_stopped(
    request: pytest.FixtureRequest, broker: str, kills: int
) -> None:
    run = Strikes(request.getfixturevalue(broker), seed=1)
    try:
        for _ in range(kills):
            run.strike()
        run.finish()
    finally:
        run.end()
    assert run.deviations() == []
