"""One connection to one broker: it connects, starts TLS, agrees on versions, logs in, then serves
requests.

A connection is never repaired: when it fails the owner opens another. Several requests may be in
flight; responses come in their order. One deadline covers all steps of opening it. A connection
belongs to the process that opened it: a forked child gets `CrossedFork`.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from onceflow.client.errors import (
    AnswerMalformed,
    ApiNotServed,
    BrokerUnreachable,
    ConnectionClosed,
    ConnectionLost,
    CrossedFork,
    NotKafka,
    RequestTimedOut,
    TlsFailed,
)
from onceflow.client.net.address import BrokerAddress
from onceflow.client.net.security import PLAINTEXT, Derive, Security, in_a_thread, log_in
from onceflow.client.net.stream import LARGEST_ANSWER, Buffer, OnAnswer, RequestHead, Stream
from onceflow.client.net.versions import SPOKEN, VersionRange, choose
from onceflow.errors import MessageMalformed
from onceflow.runtime import Net, Rand, RealRand
from onceflow.wire import (
    INT16,
    ApiKey,
    decode,
    encode,
    is_flexible,
    message_class,
    read_int,
    recast,
)

__all__ = ["BrokerConnection", "LARGEST_ANSWER"]

_SOFTWARE_NAME: Final = "onceflow"
_MILLISECOND: Final = timedelta(milliseconds=1)
_UNSUPPORTED_VERSION: Final = 35
_UNKNOWN_EPOCH: Final = -1
_KEY_AND_VERSION: Final = struct.Struct(">hh")
_NO_FEATURES: Final[Mapping[str, int]] = MappingProxyType({})
_LOGIN_HINT: Final = (
    "; if that port wants a login, set security.protocol to SASL_PLAINTEXT or SASL_SSL"
)


class BrokerConnection:
    """Made by `BrokerConnection.open`. `features` are the feature levels that the cluster has
    finalized (empty when the broker does not say), `features_epoch` is how new that knowledge is. A
    request that is not answered within `timeout_s` ends the connection."""

    __slots__ = (
        "_client_id",
        "_heads",
        "_pid",
        "_stream",
        "_theirs",
        "address",
        "features",
        "features_epoch",
        "timeout_s",
    )

    def __init__(self, stream: Stream, client_id: str, timeout_s: float) -> None:
        self._stream = stream
        self._client_id = client_id
        self.timeout_s = timeout_s
        self._theirs: dict[int, VersionRange] = {}
        self._heads: dict[tuple[int, int], RequestHead] = {}
        self._pid = os.getpid()
        self.address = stream.address
        self.features = _NO_FEATURES
        self.features_epoch = _UNKNOWN_EPOCH

    @classmethod
    async def open(
        cls,
        net: Net,
        address: BrokerAddress,
        *,
        client_id: str = _SOFTWARE_NAME,
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
        ours, theirs = SPOKEN[key], self._theirs.get(key)
        if newest is not None:
            ours = VersionRange(ours.oldest, min(ours.newest, newest))
        version = choose(ours, theirs)
        if version is None:
            offer = f"only versions {theirs}" if theirs else "no version at all"
            raise ApiNotServed(
                f"the broker at {self.address} offers {offer} of {key.name}; "
                f"this client speaks {ours}"
            )
        return version

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
        is_tagged = is_flexible(key, version)
        name = self._client_id.encode()
        head = RequestHead(
            name=key.name,
            before=_KEY_AND_VERSION.pack(key, version),
            after=INT16.pack(len(name)) + name + (b"\x00" if is_tagged else b""),
            answer_has_tags=is_tagged and key is not ApiKey.API_VERSIONS,
        )
        self._heads[key, version] = head
        return head

    # --- opening --------------------------------------------------------------------------------

    async def _greet(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._agree_on_versions()
        except TimeoutError as error:
            raise NotKafka(
                f"{self.address} accepts connections and does not answer; is it a Kafka broker?"
            ) from error
        except ConnectionLost as error:
            raise NotKafka(
                f"{self.address} closes the connection at once; it is not a Kafka broker, or one "
                "that wants TLS (security.protocol)"
            ) from error

    async def _log_in(
        self, security: Security, rand: Rand, derive: Derive, deadline: float
    ) -> None:
        name = self._client_id.encode()

        async def ask(api: int, version: int, body: bytes) -> memoryview:
            before = _KEY_AND_VERSION.pack(api, version)
            after = INT16.pack(len(name)) + name
            head = RequestHead("a login", before, after, answer_has_tags=False)
            return await self._stream.ask(head, (body,), self.timeout_s)

        try:
            async with asyncio.timeout_at(deadline):
                await log_in(security, ask, rand, derive)
        except TimeoutError as error:
            raise RequestTimedOut(f"{self.address} did not answer a login in time") from error

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
            each.api_key: VersionRange(each.min_version, each.max_version)
            for each in answer.api_keys
        }
        self.features_epoch = getattr(answer, "finalized_features_epoch", _UNKNOWN_EPOCH)
        if self.features_epoch >= 0:  # else they are not valid
            levels = {each.name: int(each.max_version_level) for each in answer.finalized_features}
            self.features = MappingProxyType(levels)

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
        raise BrokerUnreachable(_why_unreachable(address, error)) from error
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
    except ssl.SSLCertVerificationError as error:
        raise TlsFailed(
            f"the certificate of {address} is not accepted: {error.verify_message}; "
            "check ssl.cafile and the names in the certificate"
        ) from error
    except ssl.SSLError as error:
        raise TlsFailed(
            f"{address} does not agree to TLS ({error.reason or error}); is it a TLS port, and "
            "does it want a certificate of ours (ssl.certfile)?"
        ) from error
    except TimeoutError as error:
        raise NotKafka(
            f"{address} accepts connections and does not answer a TLS handshake; is it a TLS port?"
        ) from error
    except OSError as error:
        raise NotKafka(
            f"{address} closes the connection in the TLS handshake; is it a TLS port?"
        ) from error


@cache
def _software_version() -> str:
    """The version for ApiVersions, in the few characters that brokers allow."""
    from importlib import metadata  # slow to load

    try:
        return re.sub(r"[^a-zA-Z0-9.-]", "-", metadata.version("onceflow"))
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def _older_version(refusal: Any, tried: int) -> int:
    """The version to ask in after `tried` was refused: the newest on offer, else 0."""
    offered = [each.max_version for each in refusal.api_keys if each.api_key == ApiKey.API_VERSIONS]
    newest = int(offered[0]) if offered else 0
    return newest if 0 <= newest < tried else 0


def _why_unreachable(address: BrokerAddress, error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {address}; check host and port, and that the broker runs"
    if isinstance(error, socket.gaierror):
        return f"the host name {address.host!r} of {address} is not known; check its spelling"
    if isinstance(error, TimeoutError):
        return f"{address} does not answer; check host and port, and that no firewall is between"
    return f"cannot connect to {address}: {error.strerror or error}"
