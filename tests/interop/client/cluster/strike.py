"""A kill that comes at a chosen moment of a load: with records under way, at an offset commit, with
the end of a transaction under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from onceflow.client.codec.transactions import EndTxn, TransactionRequest, TxnOffsetCommit
from onceflow.client.transactions.driver import TransactionDriver
from onceflow.client.transactions.retrier import Reply, RequestAttempt
from onceflow.client.worker.transaction_client import TransactionClient


class Moment(Enum):
    """When, and who is the one to be hit then."""

    SENDING = "the leader of a partition while records are sent"
    OFFSETS = "the group's coordinator at an offset commit"
    COMMITTING = "the transaction's coordinator with a commit under way"
    ABORTING = "the transaction's coordinator with an abort under way"


def moment_of(request: TransactionRequest) -> Moment | None:
    """When a request is sent, which moment is it?"""
    match request:
        case TxnOffsetCommit():
            return Moment.OFFSETS
        case EndTxn(committed=True):
            return Moment.COMMITTING
        case EndTxn():
            return Moment.ABORTING
        case _:
            return None


class _Prepared(NamedTuple):
    moment: Moment
    first: Callable[[], None]
    then: Callable[[], None]
    delay_s: float


class Strike:
    """Armed by whoever watches a load; the load says when its moments come."""

    def __init__(self) -> None:
        self._prepared: _Prepared | None = None
        self._lock = threading.Lock()
        self.has_struck = threading.Event()

    def arm(
        self,
        moment: Moment,
        kill: Callable[[], None],
        *,
        freeze: Callable[[], None] = lambda: None,
        delay_s: float = 0.0,
    ) -> None:
        """At the next such moment: `freeze` before the request is sent, `kill` a little later."""
        with self._lock:
            self.has_struck.clear()
            self._prepared = _Prepared(moment, freeze, kill, delay_s)

    def at(self, moment: Moment) -> None:
        """It is that moment now; returns at once, for the load to go on into the kill."""
        with self._lock:
            prepared = self._prepared
            if prepared is None or prepared.moment is not moment:
                return
            self._prepared = None
        prepared.first()
        threading.Timer(prepared.delay_s, self._strike, (prepared.then,)).start()

    def _strike(self, kill: Callable[[], None]) -> None:
        kill()
        self.has_struck.set()

    def watch(self, driver: TransactionDriver) -> None:
        """Takes the moments from the requests of an async producer."""
        asking = driver._ask

        async def watched(ask: RequestAttempt) -> Reply:
            self._at_request(ask)
            return await asking(ask)

        driver._ask = watched  # type: ignore[method-assign]  # to know when it asks

    def watch_blocking(self, finisher: TransactionClient) -> None:
        """Takes them from the requests of a blocking program."""
        performing = finisher._perform

        def watched(step: RequestAttempt) -> Reply:
            self._at_request(step)
            return performing(step)

        finisher._perform = watched  # type: ignore[method-assign]  # to know when it asks

    def _at_request(self, step: RequestAttempt) -> None:
        moment = moment_of(step.request)
        if moment is not None:
            self.at(moment)
