"""Encryption and authentication: TLS, and a SASL login by PLAIN or SCRAM.

TLS is 1.2 or newer; the broker's certificate and its host name are checked. The messages of a login
are written by hand: they come before client and broker have agreed on anything.
"""

from __future__ import annotations

import base64
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from onceflow.client.errors import AuthenticationFailed
from onceflow.client.net.scram import HASHES, Conversation, Derivation, plain, scram
from onceflow.errors import InvalidSetting, MessageMalformed
from onceflow.runtime import Rand
from onceflow.wire import (
    INT16,
    INT32,
    ErrorCode,
    error_code,
    read_count,
    read_int,
    read_slice,
    read_text,
    text,
)

T = TypeVar("T")

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *HASHES)
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
_VERSION: Final = 1
_NONCE_BYTES: Final = 24
_FIXED: Final = False
"""These versions have no compact lengths."""

Derive: TypeAlias = Callable[[Derivation], Awaitable[bytes]]
SendBytes: TypeAlias = Callable[[int, int, bytes], Awaitable[memoryview]]
"""Takes the number and version of an API and a request's body; returns the response's body."""


async def in_a_thread(derivation: Derivation) -> bytes:
    """Runs the slow step in a thread, while the loop goes on."""
    import asyncio  # not for blocking clients, which start in a forked worker

    return await asyncio.to_thread(derivation.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How connections are protected. Passwords are not shown by `repr`."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    """The trusted authorities; None: those of the operating system."""
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_login(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def tls_context(self) -> ssl.SSLContext | None:
        """None for plain text. Reads the files; raises `InvalidSetting` when that fails."""
        if not self.uses_tls:
            return None
        context = _reading("ssl.cafile", self.ca_file, self._trusting)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.cert_file is not None:
            _reading("ssl.certfile", self.cert_file, lambda: self._load_own(context))
        return context

    def _trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_file)

    def _load_own(self, context: ssl.SSLContext) -> None:
        # Given as a function: without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(
            self.cert_file or "", self.key_file, password=lambda: self.key_password or ""
        )

    def conversation(self, rand: Rand) -> Conversation:
        """The messages after the handshake."""
        name, password = self.username or "", self.password or ""
        if self.mechanism in HASHES:
            nonce = base64.b64encode(rand.randbytes(_NONCE_BYTES)).decode()
            return scram(self.mechanism, name, password, nonce)
        return plain(name, password)


PLAINTEXT: Final = Security()


def _reading(key: str, path: str | None, read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as error:  # those of `ssl` are, too
        raise InvalidSetting(
            f"{key} = {path}: it cannot be used ({error.strerror or error}); give a readable PEM "
            "file, with the key that belongs to the certificate"
        ) from error


async def log_in(
    security: Security, ask: SendBytes, rand: Rand, derive: Derive = in_a_thread
) -> None:
    """Logs in on an open connection; raises `AuthenticationFailed`."""
    try:
        await _handshake(security.mechanism or PLAIN, ask)
        await _converse(security.conversation(rand), ask, derive)
    except MessageMalformed as error:
        raise AuthenticationFailed(f"the broker answers a login wrongly: {error}") from error


async def _handshake(mechanism: str, ask: SendBytes) -> None:
    answer = await ask(SASL_HANDSHAKE, _VERSION, text(_FIXED, mechanism))
    code, at = read_int(INT16, answer, 0)
    count, at = read_count(_FIXED, answer, at)
    offered = []
    for _ in range(count):
        name, at = read_text(_FIXED, answer, at)
        offered.append(name or "")
    if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise AuthenticationFailed(
            f"the broker takes no {mechanism} login here; sasl.mechanism may be "
            f"{' or '.join(offered) or 'nothing at all'}"
        )
    if code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(
            "the broker wants no login at this port; set security.protocol to PLAINTEXT or SSL, "
            "or use the port that does"
        )
    if code:
        raise AuthenticationFailed(f"the broker refuses a login ({error_code(code).name})")


async def _converse(conversation: Conversation, ask: SendBytes, derive: Derive) -> None:
    step = next(conversation)
    while True:
        if isinstance(step, Derivation):
            heard = await derive(step)
        else:
            heard = await _authenticate(step, ask)
        try:
            step = conversation.send(heard)
        except StopIteration:
            return


async def _authenticate(said: bytes, ask: SendBytes) -> bytes:
    answer = await ask(SASL_AUTHENTICATE, _VERSION, struct.pack(">i", len(said)) + said)
    code, at = read_int(INT16, answer, 0)
    message, at = read_text(_FIXED, answer, at)
    heard, at = read_slice(_FIXED, INT32, answer, at)
    if code:
        reason = message or error_code(code).name
        raise AuthenticationFailed(f"the broker refuses the login: {reason}")
    return bytes(heard or b"")
