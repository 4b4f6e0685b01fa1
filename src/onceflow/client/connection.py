"""One connection to one broker: requests go out, answers come back in the same order.

When a connection fails, every request that waits on it fails with the same named error, and so
does every later one: a connection is never mended, the owner opens another. A request that is not
answered by its deadline ends the connection, because nobody knows when its answer would come and
all others would queue behind it.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from functools import cache
from importlib import metadata
from typing import Any, Final, cast

from onceflow.client.address import Address
from onceflow.client.errors import (
    AnswerMalformed,
    ApiNotServed,
    BrokerUnreachable,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
)
from onceflow.client.versions import SPOKEN, Versions, choose
from onceflow.errors import FrameTooLarge, MessageMalformed
from onceflow.runtime.net import Net
from onceflow.wire.api import ApiKey, is_flexible
from onceflow.wire.codec import decode, encode, message_class
from onceflow.wire.frame import FrameReader, Scratch
from onceflow.wire.header import request_header
from onceflow.wire.primitives import INT16, INT32, read_int, skip_tags
from onceflow.wire.recast import recast

LARGEST_ANSWER: Final = 256 << 20
"""Less than any four letters of ASCII or the start of a TLS alert, taken for a length."""
_SOFTWARE_NAME: Final = "onceflow"
_UNSUPPORTED_VERSION: Final = 35
_LARGEST_CORRELATION_ID: Final = 2**31 - 1


class _Stream(asyncio.BufferedProtocol):
    """Frames in, and who waits for which."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.failure: tuple[type[ClientError], str] | None = None
        self.has_answered = False
        self._waiters: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._correlation_id = 0
        self._scratch = Scratch()
        self._frames = FrameReader(self._scratch, LARGEST_ANSWER, self._on_frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asked whether it is one: those of uvloop are no subclass.
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._frames.received(nbytes)
        except FrameTooLarge:
            kind = AnswerMalformed if self.has_answered else NotKafka
            self.fail(kind, f"{self.address} {_what_it_speaks(bytes(self._scratch.view[:4]))}")

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc is not None else ""
        self.fail(ConnectionLost, f"{self.address} closed the connection{reason}")

    def send(self, key: ApiKey, version: int, client_id: str, body: bytes) -> asyncio.Future[bytes]:
        """Sends a request; the future is its answer from behind the correlation id on."""
        if self.transport is None or self.failure is not None:
            raise self.error()
        self._correlation_id = self._correlation_id % _LARGEST_CORRELATION_ID + 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._correlation_id, future))
        header = request_header(key, version, self._correlation_id, client_id)
        self.transport.write(b"".join((INT32.pack(len(header) + len(body)), header, body)))
        return future

    def error(self) -> ClientError:
        kind, message = self.failure or (ConnectionLost, f"{self.address} is not connected")
        return kind(message)

    def fail(self, kind: type[ClientError], message: str) -> None:
        """Ends the connection; the first reason is the one that counts."""
        if self.failure is None:
            self.failure = kind, message
        if self.transport is not None:
            self.transport.abort()
            self.transport = None
        while self._waiters:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_exception(self.error())

    def _on_frame(self, frame: memoryview) -> bool:
        if self.failure is not None:
            return True
        correlation_id = INT32.unpack_from(frame)[0] if len(frame) >= INT32.size else None
        if not self._waiters or self._waiters[0][0] != correlation_id:
            kind = AnswerMalformed if self.has_answered else NotKafka
            self.fail(kind, f"{self.address} sent an answer to a question that was not asked")
            return True
        self.has_answered = True
        _, future = self._waiters.popleft()
        if not future.done():  # who waited may have been cancelled
            future.set_result(bytes(frame[INT32.size :]))
        return True


def _what_it_speaks(start: bytes) -> str:
    if start == b"HTTP":
        return "speaks HTTP, not the Kafka protocol"
    if start[:2] in (b"\x15\x03", b"\x16\x03"):
        return "speaks TLS, and only plain text is supported"
    return "does not speak the Kafka protocol"


class Connection:
    """Made by `Connection.open`, which also agrees on versions."""

    __slots__ = ("_client_id", "_stream", "_theirs", "_timeout_s", "address")

    def __init__(self, stream: _Stream, client_id: str, timeout_s: float) -> None:
        self._stream = stream
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._theirs: dict[int, Versions] = {}
        self.address = stream.address

    @classmethod
    async def open(
        cls,
        net: Net,
        address: Address,
        *,
        client_id: str = _SOFTWARE_NAME,
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 30.0,
    ) -> Connection:
        """Raises `BrokerUnreachable`, `NotKafka` or `RequestTimedOut`."""
        try:
            async with asyncio.timeout(connect_timeout_s):
                _, stream = await net.connect(address.host, address.port, lambda: _Stream(address))
        except OSError as error:
            raise BrokerUnreachable(_why_unreachable(address, error)) from error
        connection = cls(stream, client_id, request_timeout_s)
        try:
            async with asyncio.timeout(connect_timeout_s):
                await connection._agree_on_versions()
        except TimeoutError as error:
            connection.close()
            raise NotKafka(
                f"{address} accepts connections and does not answer; is it a Kafka broker?"
            ) from error
        except ConnectionLost as error:
            raise NotKafka(
                f"{address} closes the connection at once; it is not a Kafka broker, or one "
                "that wants TLS or a login"
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._stream.failure is None

    def close(self) -> None:
        """Ends the connection; whoever waits gets `ConnectionClosed`."""
        self._stream.fail(ConnectionClosed, f"the connection to {self.address} was closed")

    def version_of(self, key: ApiKey) -> int:
        """The version in which an API is spoken here; raises `ApiNotServed`."""
        theirs = self._theirs.get(key)
        version = choose(SPOKEN[key], theirs)
        if version is None:
            offer = f"only versions {theirs}" if theirs else "no version at all"
            raise ApiNotServed(
                f"the broker at {self.address} offers {offer} of {key.name}; "
                f"this client speaks {SPOKEN[key]}"
            )
        return version

    async def request(self, key: ApiKey, message: Any, *, timeout_s: float | None = None) -> Any:
        """Sends a message of any version; the answer is in the newest version that we speak."""
        version = self.version_of(key)
        body = encode(recast(message, message_class(key, version, "request")))
        frame = await self.exchange(key, version, body, timeout_s=timeout_s)
        answer = self._decode(key, version, frame)
        return recast(answer, message_class(key, SPOKEN[key].newest, "response"))

    async def exchange(
        self, key: ApiKey, version: int, body: bytes, *, timeout_s: float | None = None
    ) -> memoryview:
        """Sends the bytes of a request's body; the bytes of the answer's body."""
        limit = self._timeout_s if timeout_s is None else timeout_s
        future = self._stream.send(key, version, self._client_id, body)
        try:
            async with asyncio.timeout(limit):
                frame = memoryview(await future)
        except TimeoutError:
            message = f"{self.address} did not answer {key.name} within {limit:g} s"
            self._stream.fail(RequestTimedOut, message)
            raise RequestTimedOut(message) from None
        has_tags = is_flexible(key, version) and key is not ApiKey.API_VERSIONS
        return frame[skip_tags(frame, 0) :] if has_tags else frame

    async def _agree_on_versions(self) -> None:
        """Asks in the newest version; a broker that does not know it answers in version 0."""
        asked = SPOKEN[ApiKey.API_VERSIONS].newest
        while True:
            kind: Any = message_class(ApiKey.API_VERSIONS, asked, "request")
            names = {
                "client_software_name": _SOFTWARE_NAME,
                "client_software_version": _software_version(),
            }
            message = kind(**names) if is_flexible(ApiKey.API_VERSIONS, asked) else kind()
            frame = await self.exchange(ApiKey.API_VERSIONS, asked, encode(message))
            if read_int(INT16, frame, 0)[0] != _UNSUPPORTED_VERSION or asked == 0:
                break
            asked = _older_version(self._decode(ApiKey.API_VERSIONS, 0, frame), asked)
        answer = self._decode(ApiKey.API_VERSIONS, asked, frame)
        if answer.error_code.value:
            name = answer.error_code.name.upper()
            raise NotKafka(f"{self.address} does not say which versions it speaks ({name})")
        self._theirs = {
            each.api_key: Versions(each.min_version, each.max_version) for each in answer.api_keys
        }

    def _decode(self, key: ApiKey, version: int, frame: memoryview) -> Any:
        try:
            return decode(message_class(key, version, "response"), frame)
        except MessageMalformed as error:
            message = f"{self.address} answers {key.name} version {version} wrongly: {error}"
            self._stream.fail(AnswerMalformed, message)
            raise AnswerMalformed(message) from error


@cache
def _software_version() -> str:
    """What brokers are told, in the few letters that they allow."""
    try:
        return re.sub(r"[^a-zA-Z0-9.-]", "-", metadata.version("onceflow"))
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def _older_version(refusal: Any, tried: int) -> int:
    """What to ask in after `tried` was refused: the newest that is offered, else version 0."""
    offered = [each.max_version for each in refusal.api_keys if each.api_key == ApiKey.API_VERSIONS]
    newest = int(offered[0]) if offered else 0
    return newest if 0 <= newest < tried else 0


def _why_unreachable(address: Address, error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {address}; check host and port, and that the broker runs"
    if isinstance(error, socket.gaierror):
        return f"the host name {address.host!r} of {address} is not known; check its spelling"
    if isinstance(error, TimeoutError):
        return f"{address} does not answer; check host and port, and that no firewall is between"
    return f"cannot connect to {address}: {error.strerror or error}"
