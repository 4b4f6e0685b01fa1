"""Runs the transaction machine on a cluster: sends its requests, waits, looks up coordinators."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from onceflow.client.codec import read_answer
from onceflow.client.errors import ApiNotServed, ClientError, ConnectionClosed, RequestTimedOut
from onceflow.client.net import BrokerConnection, Cluster, CoordinatorOf
from onceflow.client.transactions.retrier import Operation, Reply, RequestAttempt
from onceflow.errors import MessageMalformed
from onceflow.runtime import Clock

T = TypeVar("T")


class TransactionDriver:
    """Runs one operation at a time: a producer's transactional requests must not overtake each
    other. After `close` it sends nothing more; a producer that is started again gets another."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._turn = asyncio.Lock()
        self._is_closed = False

    def close(self) -> None:
        """What is asked gets no further answer, nor does what waits for its turn."""
        self._is_closed = True

    async def idle(self) -> None:
        """Until all that wanted their turn have had it."""
        async with self._turn:
            pass

    async def run(self, operation: Operation[T]) -> T:
        """What the operation returns or raises. One that is cancelled counts as not answered."""
        async with self._turn:
            try:
                ask = next(operation)
                while True:
                    ask = operation.send(await self._ask(ask))
            except StopIteration as end:
                found: T = end.value
                return found
            finally:
                operation.close()

    async def _ask(self, ask: RequestAttempt) -> Reply:
        if ask.pause_s:
            await asyncio.sleep(ask.pause_s)
        if self._is_closed:
            return ConnectionClosed("the producer is closed", outcome="not applied")
        group_id = ask.group_id
        kind = CoordinatorOf.TRANSACTION if group_id is None else CoordinatorOf.GROUP
        key = ask.request.identity.transactional_id if group_id is None else group_id
        if ask.refind:
            self._cluster.forget_coordinator(key, kind)
        left = ask.deadline - self._clock.monotonic()
        connection = self._cluster.coordinator_at_hand(key, kind)
        try:
            if connection is not None and connection.timeout_s <= left:
                return await self._send(ask, connection)  # its own deadline comes first
            async with asyncio.timeout(max(left, 0.0)):
                return await self._send(ask, await self._find(key, kind))
        except TimeoutError:
            return RequestTimedOut(f"{ask.request.api.name} was not answered in time")
        except ClientError as error:
            return error

    async def _find(self, key: str, kind: CoordinatorOf) -> BrokerConnection:
        try:
            return await self._cluster.coordinator(key, kind)
        except ClientError as error:  # whatever was lost, it was not the request itself
            error.outcome = "not applied"
            raise

    async def _send(self, ask: RequestAttempt, connection: BrokerConnection) -> Reply:
        request = ask.request
        version = connection.version_of(request.api, newest=request.versions.newest)
        if version < request.versions.oldest:
            raise ApiNotServed(
                f"the broker at {connection.address} speaks {request.api.name} up to version "
                f"{version}, and a transaction of this protocol needs {request.versions}"
            )
        frame = await connection.submit(request.api, version, (request.body(version),))
        try:
            return read_answer(request, version, frame)
        except MessageMalformed as error:
            raise connection.malformed(request.api, version, error) from error
