"""One blocking connection to one broker: no event loop, no thread, a deadline for everything.

Several requests may be sent before the first answer is received; answers come in their order. A
connection is never mended, and belongs to the process that opened it.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from onceflow.client.codec import VERSIONS, read_api_versions, write_api_versions
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
from onceflow.client.net import (
    LARGEST_ANSWER,
    PLAINTEXT,
    BrokerAddress,
    Derivation,
    Security,
    VersionRange,
    choose,
    log_in,
)
from onceflow.errors import InvariantViolated, MessageMalformed
from onceflow.runtime import Clock, Rand
from onceflow.wire import INT16, INT32, ApiKey, is_flexible, skip_tags

T = TypeVar("T")

Buffer: TypeAlias = bytes | bytearray | memoryview

_SOFTWARE: Final = ("onceflow", "worker")
_HEAD: Final = struct.Struct(">ihhi")
_LARGEST_CORRELATION_ID: Final = 2**31 - 1
_WORTH_JOINING: Final = 64 << 10
_OF_RECORDS: Final = 256 << 10
"""Answers of that size hold records."""


class _Question(NamedTuple):
    """A request's head, but for the correlation id."""

    name: str
    api: int
    version: int
    has_tags: bool
    answer_has_tags: bool


class BlockingConnection:
    """Made by `open`. `features` are the levels that the cluster has finalized."""

    def __init__(self, address: BrokerAddress, client_id: str, clock: Clock) -> None:
        self.address = address
        self.features: dict[str, int] = {}
        self._versions: dict[int, VersionRange] = {}
        self._socket: socket.socket | None = None
        self._client_id = client_id.encode()
        self._clock = clock
        self._pid = os.getpid()
        self._correlation_id = 0
        self._waiting: deque[tuple[int, _Question]] = deque()
        """With their correlation ids."""

    @classmethod
    def open(
        cls,
        address: BrokerAddress,
        deadline: float,
        *,
        clock: Clock,
        rand: Rand,
        client_id: str = _SOFTWARE[0],
        security: Security = PLAINTEXT,
        tls: ssl.SSLContext | None = None,
    ) -> BlockingConnection:
        """Raises `BrokerUnreachable`, `TlsFailed`, `NotKafka`, `AuthenticationFailed` or
        `RequestTimedOut`. `tls` is `security.tls_context()`, made once for many connections."""
        connection = cls(address, client_id, clock)
        try:
            connection._reach(deadline)
            if security.uses_tls:
                connection._encrypt(tls or security.tls_context(), deadline)
            connection._greet(deadline)
            if security.uses_login:
                connection._log_in(security, rand, deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._socket is not None and self._pid == os.getpid()

    @property
    def in_flight(self) -> int:
        """Requests whose answers have not been received."""
        return len(self._waiting)

    @property
    def has_answer(self) -> bool:
        """Whether `receive` has something to read, be it that the connection has ended."""
        sock = self._socket
        if sock is None or (isinstance(sock, ssl.SSLSocket) and sock.pending()):
            return True
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Ends the connection. In a forked child it only lets go of the copy."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._waiting.clear()

    def version_of(self, key: ApiKey, ours: VersionRange) -> int:
        """The newest version that both sides speak; raises `ApiNotServed`."""
        theirs = self._versions.get(key)
        version = choose(ours, theirs)
        if version is None:
            offer = f"only versions {theirs}" if theirs else "no version at all"
            raise ApiNotServed(
                f"the broker at {self.address} offers {offer} of {key.name}; needed is {ours}"
            )
        return version

    def ask(self, key: ApiKey, version: int, body: Sequence[Buffer], deadline: float) -> memoryview:
        """Sends a request when no other is in flight; the body of its answer."""
        if self._waiting:
            raise InvariantViolated(f"{key.name} was asked of {self.address} out of turn")
        self.send(key, version, body, deadline)
        return self.receive(deadline)

    def send(self, key: ApiKey, version: int, body: Sequence[Buffer], deadline: float) -> None:
        """Sends a request now; `receive` brings its answer."""
        has_tags = is_flexible(key, version)
        answer_has_tags = has_tags and key is not ApiKey.API_VERSIONS
        self._send(_Question(key.name, key, version, has_tags, answer_has_tags), body, deadline)

    def _send(self, question: _Question, body: Sequence[Buffer], deadline: float) -> None:
        sock = self._mine()
        self._correlation_id = number = self._correlation_id % _LARGEST_CORRELATION_ID + 1
        after = INT16.pack(len(self._client_id)) + self._client_id
        after += b"\x00" if question.has_tags else b""
        size = _HEAD.size - INT32.size + len(after) + sum(map(len, body))
        start = _HEAD.pack(size, question.api, question.version, number) + after
        parts: Sequence[Buffer] = (start, *body)
        if size <= _WORTH_JOINING:
            parts = (b"".join(parts),)
        try:
            for part in parts:
                sock.settimeout(self._left(deadline, question.name))
                sock.sendall(part)
        except TimeoutError as error:
            raise self._late(question.name) from error
        except OSError as error:
            raise self._lost(error) from error
        # Only a whole request waits for an answer: one that failed half-way has ended the
        # connection, and a partial frame dies with it.
        self._waiting.append((number, question))

    def receive(self, deadline: float) -> memoryview:
        """The body of the answer to the oldest request in flight."""
        sock = self._mine()
        if not self._waiting:
            raise ConnectionClosed(f"no request was made to {self.address}", outcome="not applied")
        number, question = self._waiting[0]
        try:
            size: int = INT32.unpack(self._exactly(sock, INT32.size, deadline))[0]
            if not INT32.size <= size <= LARGEST_ANSWER:
                self.close()
                raise NotKafka(f"{self.address} does not speak the Kafka protocol")
            frame = self._exactly(sock, size, deadline)
        except TimeoutError as error:
            raise self._late(question.name) from error
        except OSError as error:
            raise self._lost(error) from error
        self._waiting.popleft()
        try:
            if INT32.unpack_from(frame)[0] != number:
                raise MessageMalformed("a request was answered that was not made")
            body = frame[INT32.size :]
            return body[skip_tags(body, 0) :] if question.answer_has_tags else body
        except MessageMalformed as error:
            self.close()
            raise AnswerMalformed(f"{self.address}, {question.name}: {error}") from error

    # --- bytes ----------------------------------------------------------------------------------

    def _mine(self) -> socket.socket:
        if self._pid != os.getpid():
            raise CrossedFork(
                f"the connection to {self.address} was opened by process {self._pid} before this "
                "one was forked off"
            )
        if self._socket is None:
            raise ConnectionLost(f"{self.address} is not connected", outcome="not applied")
        return self._socket

    def _exactly(self, sock: socket.socket, size: int, deadline: float) -> memoryview:
        data = view = _room(size)
        while view:
            sock.settimeout(self._left(deadline, "an answer"))
            received = sock.recv_into(view)
            if not received:
                raise ConnectionResetError("the broker closed it")
            view = view[received:]
        return data

    def _left(self, deadline: float, name: str) -> float:
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError(f"no time is left for {name}")
        return left

    def _late(self, name: str) -> RequestTimedOut:
        # A late answer would be taken for that to the next request.
        self.close()
        return RequestTimedOut(f"{self.address} did not answer {name} in time")

    def _lost(self, error: OSError) -> ConnectionLost:
        self.close()
        return ConnectionLost(f"the connection to {self.address} was lost: {error}")

    # --- opening --------------------------------------------------------------------------------

    def _reach(self, deadline: float) -> None:
        try:
            left = self._left(deadline, "a connection")
            self._socket = socket.create_connection(self.address, timeout=left)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise BrokerUnreachable(
                f"cannot connect to {self.address}: {error.strerror or error}; check host and "
                "port, and that the broker runs"
            ) from error

    def _encrypt(self, context: ssl.SSLContext | None, deadline: float) -> None:
        sock = self._mine()
        if context is None:
            raise TlsFailed(f"there are no settings for TLS to {self.address}")
        try:
            sock.settimeout(self._left(deadline, "TLS"))
            self._socket = context.wrap_socket(sock, server_hostname=self.address.host)
        except OSError as error:  # those of `ssl` and timeouts are, too
            reason = getattr(error, "verify_message", None) or error
            raise TlsFailed(
                f"{self.address} does not agree to TLS ({reason}); is it a TLS port, and is its "
                "certificate signed by one that is trusted (ssl.cafile)?"
            ) from error

    def _greet(self, deadline: float) -> None:
        key = ApiKey.API_VERSIONS
        try:
            answer = self.ask(key, VERSIONS[key], (write_api_versions(*_SOFTWARE),), deadline)
            offer = read_api_versions(answer)
        except (ConnectionLost, RequestTimedOut, MessageMalformed) as error:
            raise NotKafka(
                f"{self.address} accepts connections and does not answer like a Kafka broker; does "
                f"that port want TLS (security.protocol)? ({error})"
            ) from error
        if offer.error:
            raise ApiNotServed(f"the broker at {self.address} is older than Apache Kafka 2.4")
        self._versions, self.features = offer.versions, offer.features

    def _log_in(self, security: Security, rand: Rand, deadline: float) -> None:
        async def ask(api: int, version: int, body: bytes) -> memoryview:
            self._send(_Question("a login", api, version, False, False), (body,), deadline)
            return self.receive(deadline)

        async def derive(derivation: Derivation) -> bytes:
            return derivation.run()

        _at_once(log_in(security, ask, rand, derive))


def _room(size: int) -> memoryview:
    """Memory for an answer. Records go into memory of Arrow's pool, which is neither cleared for
    each answer nor returned to the system in between."""
    if size < _OF_RECORDS:
        return memoryview(bytearray(size))
    import pyarrow as pa

    return memoryview(pa.allocate_buffer(size)).cast("B")


def _at_once(steps: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends: the calls that it awaits block instead."""
    try:
        steps.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    steps.close()
    raise ConnectionClosed("a login waited for an event loop, and there is none here")
