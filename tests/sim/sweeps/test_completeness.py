"""Every coroutine of the public clients is cut short by one of the sweeps: what a client gains has
to become part of a program of theirs."""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from functools import wraps
from typing import Any

import pytest

from onceflow.client.admin.admin import Admin
from onceflow.client.consumer.consumer import Consumer
from onceflow.client.producer.producer import Producer
from onceflow.client.producer.transaction import Transaction
from onceflow.client.session.session import Session
from onceflow.client.session.transaction import SessionTransaction
from tests.sim.sweeps.consumers import OTHERS, TAKES
from tests.sim.sweeps.sending import Waits, sizes
from tests.sim.sweeps.sending_programs import PROGRAMS

CLIENTS = (Producer, Transaction, Session, SessionTransaction, Admin)
IS_SWEPT = ContextVar("is_swept", default=False)

pytestmark = pytest.mark.usefixtures("quiet")


def coroutines(kind: type) -> set[str]:
    """Those that users call; not the ends of `async with`, which call others of these."""
    return {
        name
        for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_") or name == "__anext__"
    }


def note_calls(patch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Each coroutine that is called, from now on, where a sweep may cut it short."""
    called: set[tuple[str, str]] = set()

    def noted(kind: type, name: str) -> Any:
        honest = getattr(kind, name)

        @wraps(honest)
        async def call(*args: Any, **named: Any) -> Any:
            if IS_SWEPT.get():
                called.add((kind.__name__, name))
            return await honest(*args, **named)

        return call

    honest_run = Waits._run

    async def run(waits: Waits, work: Any) -> Any:
        IS_SWEPT.set(True)
        return await honest_run(waits, work)

    patch.setattr(Waits, "_run", run)
    for kind in CLIENTS:
        for name in coroutines(kind):
            patch.setattr(kind, name, noted(kind, name))
    return called


def test_each_coroutine_that_sends_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {(kind.__name__, name) for kind in CLIENTS for name in coroutines(kind)}
    called = note_calls(monkeypatch)
    for program in PROGRAMS.values():
        sizes(program)
    assert wanted - called == set()


def test_each_coroutine_of_consumers_is_swept() -> None:
    swept = {name.replace("anext", "__anext__") for name in (*TAKES, *OTHERS)}
    assert coroutines(Consumer) - swept == set()
