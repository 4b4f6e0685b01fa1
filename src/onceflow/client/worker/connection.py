"""One blocking connection to one broker: no event loop, no thread, a deadline for everything.

Several requests may be sent before the first answer is received; answers come in their order. A
connection is never mended, and belongs to the process that opened it.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from onceflow.client.address import BrokerAddress
from onceflow.client.codec import NO_OFFER, Request, VersionRange
from onceflow.client.errors import (
    AnswerMalformed,
    ConnectionClosed,
    ConnectionLost,
    CrossedFork,
    NotKafka,
    Outcome,
    RequestTimedOut,
    TlsFailed,
)
from onceflow.client.net import (
    LARGEST_ANSWER,
    PLAINTEXT,
    SOFTWARE_NAME,
    Buffer,
    Derivation,
    RequestHead,
    Security,
    agree_on_versions,
    body_of,
    correlation_id_of,
    framed,
    hangs_up,
    log_in,
    login_head,
    next_correlation_id,
    request_head,
    silent,
    tls_failed,
    unreachable,
    version_for,
)
from onceflow.errors import InvariantViolated, MessageMalformed
from onceflow.runtime import Clock, Rand
from onceflow.wire import INT32, ApiKey

T = TypeVar("T")

_SOFTWARE_VERSION: Final = "worker"
_ANSWERED_BY_MOST: Final = 3
"""Of ApiVersions; a newer version would cost a worker a second request at brokers before 4.0."""
_OF_RECORDS: Final = 256 << 10
"""Answers of that size hold records."""


class BlockingConnection:
    """Made by `open`. `offer` says what the broker speaks."""

    def __init__(self, address: BrokerAddress, client_id: str, clock: Clock) -> None:
        self.address = address
        self.offer = NO_OFFER
        self._socket: socket.socket | None = None
        self._client_id = client_id
        self._clock = clock
        self._pid = os.getpid()
        self._heads: dict[tuple[int, int], RequestHead] = {}
        self._correlation_id = 0
        self._waiting: deque[tuple[int, RequestHead]] = deque()
        """With their correlation ids."""

    @classmethod
    def open(
        cls,
        address: BrokerAddress,
        deadline: float,
        *,
        clock: Clock,
        rand: Rand,
        client_id: str = SOFTWARE_NAME,
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
        return version_for(key, ours, self.offer.versions.get(key), self.address)

    def ask(self, request: Request[T], deadline: float) -> T:
        """Sends a request that is written by hand when no other is in flight; its response."""
        version = self.version_of(request.api, request.versions)
        answer = self.exchange(request.api, version, (request.write(version),), deadline)
        return self.understood(request.api, lambda: request.read(version, answer))

    def understood(self, key: ApiKey, read: Callable[[], T]) -> T:
        """The result of `read`; where that fails, closes the connection and raises
        `AnswerMalformed`: bytes that cannot be read leave no place to go on from."""
        try:
            return read()
        except MessageMalformed as error:
            self.close()
            raise AnswerMalformed(f"{self.address} answers {key.name} wrongly: {error}") from error

    def exchange(
        self, key: ApiKey, version: int, body: Sequence[Buffer], deadline: float
    ) -> memoryview:
        """Sends a request when no other is in flight; the body of its answer."""
        if self._waiting:
            raise InvariantViolated(f"{key.name} was asked of {self.address} out of turn")
        self.send(key, version, body, deadline)
        return self.receive(deadline)

    def send(self, key: ApiKey, version: int, body: Sequence[Buffer], deadline: float) -> None:
        """Sends a request now; `receive` brings its answer."""
        head = self._heads.get((key, version))
        if head is None:
            head = self._heads[key, version] = request_head(key, version, self._client_id)
        self._send(head, body, deadline)

    def _send(self, head: RequestHead, body: Sequence[Buffer], deadline: float) -> None:
        sock = self._mine()
        if self._clock.monotonic() >= deadline:  # nothing was sent: the connection stays as it is
            raise RequestTimedOut(f"no time was left for {head.name}", outcome="not applied")
        self._correlation_id = number = next_correlation_id(self._correlation_id)
        try:
            for part in framed(head, number, body):
                sock.settimeout(self._left(deadline, head.name))
                sock.sendall(part)
        except TimeoutError as error:
            raise self._late(head.name) from error
        except OSError as error:
            raise self._lost(error) from error
        # Only a whole request waits for an answer: one that failed half-way has ended the
        # connection, and a partial frame dies with it.
        self._waiting.append((number, head))

    def receive(self, deadline: float) -> memoryview:
        """The body of the answer to the oldest request in flight."""
        # Closed by another thread, or because an earlier answer did not come: what was sent before
        # that may be applied all the same.
        sock = self._mine(outcome="unknown")
        try:
            number, head = self._waiting[0]
        except IndexError:
            raise ConnectionLost(f"no request to {self.address} waits for its answer") from None
        try:
            size: int = INT32.unpack(self._exactly(sock, INT32.size, deadline))[0]
            if not INT32.size <= size <= LARGEST_ANSWER:
                self.close()
                raise NotKafka(f"{self.address} does not speak the Kafka protocol")
            frame = self._exactly(sock, size, deadline)
        except TimeoutError as error:
            raise self._late(head.name) from error
        except OSError as error:
            raise self._lost(error) from error
        if not self.is_open:
            raise ConnectionLost(f"the connection to {self.address} was closed meanwhile")
        self._waiting.popleft()
        try:
            if correlation_id_of(frame) != number:
                raise MessageMalformed("a request was answered that was not made")
            return body_of(frame, head)
        except MessageMalformed as error:
            self.close()
            raise AnswerMalformed(f"{self.address}, {head.name}: {error}") from error

    # --- bytes ----------------------------------------------------------------------------------

    def _mine(self, outcome: Outcome = "not applied") -> socket.socket:
        if self._pid != os.getpid():
            raise CrossedFork(
                f"the connection to {self.address} was opened by process {self._pid} before this "
                "one was forked off"
            )
        if self._socket is None:
            raise ConnectionLost(f"{self.address} is not connected", outcome=outcome)
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
            raise unreachable(self.address, error) from error

    def _encrypt(self, context: ssl.SSLContext | None, deadline: float) -> None:
        sock = self._mine()
        if context is None:
            raise TlsFailed(f"there are no settings for TLS to {self.address}")
        try:
            sock.settimeout(self._left(deadline, "TLS"))
            self._socket = context.wrap_socket(sock, server_hostname=self.address.host)
        except OSError as error:  # those of `ssl` and timeouts are, too
            raise tls_failed(self.address, error) from error

    def _greet(self, deadline: float) -> None:
        key, steps = (
            ApiKey.API_VERSIONS,
            agree_on_versions(self.address, _SOFTWARE_VERSION, _ANSWERED_BY_MOST),
        )
        try:
            version, body = next(steps)
            while True:
                version, body = steps.send(self.exchange(key, version, (body,), deadline))
        except StopIteration as end:
            self.offer = end.value
        except RequestTimedOut as error:
            raise silent(self.address) from error
        except ConnectionLost as error:
            raise hangs_up(self.address) from error
        except MessageMalformed as error:
            raise NotKafka(
                f"{self.address} does not answer like a Kafka broker: {error}"
            ) from error

    def _log_in(self, security: Security, rand: Rand, deadline: float) -> None:
        async def ask(api: int, version: int, body: bytes) -> memoryview:
            self._send(login_head(api, version, self._client_id), (body,), deadline)
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
