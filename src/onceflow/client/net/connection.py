"""One connection to one broker: it connects, starts TLS, agrees on versions, logs in, then serves
requests.

A connection is never repaired: when it fails the owner opens another. Several requests may be in
flight; responses come in their order. One deadline covers all steps of opening it. A connection
belongs to the process that opened it: a forked child gets `CrossedFork`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from onceflow.client.address import BrokerAddress
from onceflow.client.codec import NO_OFFER, SPOKEN, Request, VersionRange
from onceflow.client.errors import (
    AnswerMalformed,
    ConnectionClosed,
    ConnectionLost,
    CrossedFork,
    RequestTimedOut,
)
from onceflow.client.net.frames import Buffer, RequestHead, login_head, request_head
from onceflow.client.net.opening import (
    SOFTWARE_NAME,
    agree_on_versions,
    hangs_up,
    silent,
    software_version,
    tls_failed,
    unreachable,
    version_for,
)
from onceflow.client.net.security import PLAINTEXT, Derive, Security, in_a_thread, log_in
from onceflow.client.net.stream import OnAnswer, Stream
from onceflow.errors import MessageMalformed
from onceflow.runtime import Net, Rand, RealRand
from onceflow.wire import INT32, ApiKey, decode, encode, message_class, recast

T = TypeVar("T")

_MILLISECOND: Final = timedelta(milliseconds=1)
_LOGIN_HINT: Final = (
    "; if that port wants a login, set security.protocol to SASL_PLAINTEXT or SASL_SSL"
)


class BrokerConnection:
    """Made by `BrokerConnection.open`. `offer` says what the broker speaks. A request that is not
    answered within `timeout_s` ends the connection."""

    __slots__ = (
        "_client_id",
        "_heads",
        "_pid",
        "_stream",
        "address",
        "offer",
        "timeout_s",
    )

    def __init__(self, stream: Stream, client_id: str, timeout_s: float) -> None:
        self._stream = stream
        self._client_id = client_id
        self.timeout_s = timeout_s
        self._heads: dict[tuple[int, int], RequestHead] = {}
        self._pid = os.getpid()
        self.address = stream.address
        self.offer = NO_OFFER

    @classmethod
    async def open(
        cls,
        net: Net,
        address: BrokerAddress,
        *,
        client_id: str = SOFTWARE_NAME,
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 30.0,
        security: Security = PLAINTEXT,
        tls: ssl.SSLContext | None = None,
        rand: Rand | None = None,
        derive: Derive = in_a_thread,
    ) -> BrokerConnection:
        """Raises `BrokerUnreachable`, `TlsFailed`, `NotKafka`, `AuthenticationFailed` or
        `RequestTimedOut`, all within `connect_timeout_s`. `tls` is `security.tls_context()`, made
        once for many connections."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + connect_timeout_s
        stream = await _reach(net, address, deadline)
        connection = cls(stream, client_id, request_timeout_s)
        try:
            if security.uses_tls:
                context = tls or security.tls_context()
                await _encrypt(stream, context, deadline)
            await connection._greet(deadline)
            if security.uses_login:
                await connection._log_in(security, rand or RealRand(), derive, deadline)
            else:
                stream.hint = _LOGIN_HINT
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._stream.failure is None and self._pid == os.getpid()

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""
        return self._stream.in_flight

    def close(self) -> None:
        """Ends the connection; requests in flight fail with `ConnectionClosed`."""
        # The socket, and the loop that watches it, are the parent's: they must not be touched.
        if self._pid != os.getpid():
            self._stream.abandon(CrossedFork, self._whose())
            return
        self._stream.fail(ConnectionClosed, f"the connection to {self.address} was closed")

    def version_of(self, key: ApiKey, *, newest: int | None = None) -> int:
        """The version in which an API is spoken here, none above `newest`; raises
        `ApiNotServed`."""
        ours = SPOKEN[key]
        if newest is not None:
            ours = VersionRange(ours.oldest, min(ours.newest, newest))
        return version_for(key, ours, self.offer.versions.get(key), self.address)

    async def ask(self, request: Request[T], *, timeout_s: float | None = None) -> T:
        """Sends a request that is written by hand; returns its response."""
        key = request.api
        version = version_for(key, request.versions, self.offer.versions.get(key), self.address)
        answer = await self.submit(key, version, (request.write(version),), timeout_s=timeout_s)
        try:
            response = request.read(version, answer)
        except MessageMalformed as error:
            raise self.malformed(key, version, error) from error
        self.throttled(key, INT32.unpack_from(answer)[0])  # their first field
        return response

    async def request(
        self,
        key: ApiKey,
        message: Any,
        *,
        timeout_s: float | None = None,
        newest: int | None = None,
    ) -> Any:
        """Sends a message of any version; the answer is in the newest version that we speak."""
        version = self.version_of(key, newest=newest)
        body = encode(recast(message, message_class(key, version, "request")))
        answer = self._decode(
            key, version, await self.submit(key, version, (body,), timeout_s=timeout_s)
        )
        if throttle := getattr(answer, "throttle_time", None):
            self.throttled(key, throttle // _MILLISECOND)
        return recast(answer, message_class(key, SPOKEN[key].newest, "response"))

    async def exchange(
        self, key: ApiKey, version: int, body: bytes, *, timeout_s: float | None = None
    ) -> memoryview:
        """Sends the bytes of a request's body; the bytes of the answer's body."""
        return await self.submit(key, version, (body,), timeout_s=timeout_s)

    def submit(
        self, key: ApiKey, version: int, body: Sequence[Buffer], *, timeout_s: float | None = None
    ) -> asyncio.Future[memoryview]:
        """Sends a request now, its body in parts that are not copied when they are large; the
        future is the body of the answer, or why there is none. Parts must not change until then."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return self._stream.ask(self._head_of(key, version), body, limit_s)

    def submit_then(
        self, on_answer: OnAnswer, key: ApiKey, version: int, body: Sequence[Buffer]
    ) -> None:
        """As `submit`; `on_answer` gets the answer as soon as it arrives, without a turn of the
        loop."""
        self._stream.ask_then(on_answer, self._head_of(key, version), body, self.timeout_s)

    def tell(self, key: ApiKey, version: int, body: Sequence[Buffer]) -> None:
        """Sends a request that brokers do not answer: a Produce with acks=0."""
        self._stream.tell(self._head_of(key, version), body)

    def throttled(self, key: ApiKey, throttle_ms: int) -> None:
        """Logs that the broker delayed the request because of a quota, if it did."""
        if throttle_ms:
            self._stream.throttled(key.name, throttle_ms)

    def _whose(self) -> str:
        return (
            f"the connection to {self.address} was opened by process {self._pid} before this one "
            "was forked off"
        )

    def _head_of(self, key: ApiKey, version: int) -> RequestHead:
        if self._pid != os.getpid():
            raise CrossedFork(self._whose())
        return self._heads.get((key, version)) or self._head(key, version)

    def _head(self, key: ApiKey, version: int) -> RequestHead:
        """Made once for each version."""
        head = request_head(key, version, self._client_id)
        self._heads[key, version] = head
        return head

    # --- opening --------------------------------------------------------------------------------

    async def _greet(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._agree_on_versions()
        except TimeoutError as error:
            raise silent(self.address) from error
        except ConnectionLost as error:
            raise hangs_up(self.address) from error

    async def _log_in(
        self, security: Security, rand: Rand, derive: Derive, deadline: float
    ) -> None:
        async def ask(api: int, version: int, body: bytes) -> memoryview:
            head = login_head(api, version, self._client_id)
            return await self._stream.ask(head, (body,), self.timeout_s)

        try:
            async with asyncio.timeout_at(deadline):
                await log_in(security, ask, rand, derive)
        except TimeoutError as error:
            raise RequestTimedOut(f"{self.address} did not answer a login in time") from error

    async def _agree_on_versions(self) -> None:
        key, version = ApiKey.API_VERSIONS, 0
        steps = agree_on_versions(self.address, software_version())
        try:
            version, body = next(steps)
            while True:
                version, body = steps.send(await self.exchange(key, version, body))
        except StopIteration as end:
            self.offer = end.value
        except MessageMalformed as error:
            raise self.malformed(key, version, error) from error

    def _decode(self, key: ApiKey, version: int, frame: memoryview) -> Any:
        try:
            return decode(message_class(key, version, "response"), frame)
        except MessageMalformed as error:
            raise self.malformed(key, version, error) from error

    def malformed(self, key: ApiKey, version: int, error: MessageMalformed) -> AnswerMalformed:
        """Ends the connection because of a malformed answer; returns the error to raise."""
        message = f"{self.address} answers {key.name} version {version} wrongly: {error}"
        self._stream.fail(AnswerMalformed, message)
        return AnswerMalformed(message)


async def _reach(net: Net, address: BrokerAddress, deadline: float) -> Stream:
    try:
        async with asyncio.timeout_at(deadline):
            _, stream = await net.connect(address.host, address.port, lambda: Stream(address))
    except OSError as error:
        raise unreachable(address, error) from error
    return stream


async def _encrypt(stream: Stream, context: ssl.SSLContext | None, deadline: float) -> None:
    """From here on all bytes go through TLS."""
    loop = asyncio.get_running_loop()
    address, plain = stream.address, stream.transport
    if plain is None or context is None:
        raise stream.error(was_sent=False)
    try:
        async with asyncio.timeout_at(deadline):
            stream.transport = await loop.start_tls(
                plain, stream, context, server_hostname=address.host
            )
    except OSError as error:  # those of `ssl` and timeouts are, too
        raise tls_failed(address, error) from error
