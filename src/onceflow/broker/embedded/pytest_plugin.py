"""Fixtures for pytest: a broker for one test, or one for the whole run.

The report of a failing test contains the log of every broker that it used, including those of the
user's own fixtures. Pytest loads this module in every run wherever Onceflow is installed, so it
imports nothing before a test asks for a broker.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from onceflow.broker.embedded.broker import Broker

MOST_LINES: Final = 200


@pytest.fixture
def onceflow_broker() -> Iterator[Broker]:
    """A broker of the test's own, empty; `onceflow_broker.bootstrap` is its address."""
    from onceflow.broker.embedded.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def onceflow_broker_session() -> Iterator[Broker]:
    """One broker for all tests of the run: faster, but they see each other's topics."""
    from onceflow.broker.embedded.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Attaches what the test's brokers logged, if it failed."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.failed:
        report.sections += _sections(item, report.when)


def _sections(item: pytest.Item, when: str) -> list[tuple[str, str]]:
    loaded = sys.modules.get("onceflow.broker.embedded.broker")
    if loaded is None:  # nobody can have a broker
        return []
    given: dict[str, object] | None = getattr(item, "funcargs", None)
    return [
        (f"Captured log of {name} {when}", _tail(value.log_text))
        for name, value in (given or {}).items()
        if isinstance(value, loaded.Broker) and value.log_text
    ]


def _tail(text: str) -> str:
    lines = text.splitlines(keepends=True)
    left_out = len(lines) - MOST_LINES
    head = [f"... {left_out} lines before\n"] if left_out > 0 else []
    return "".join([*head, *lines[-MOST_LINES:]])
