"""A SCRAM login (RFC 5802) as a conversation without any network: the password is never sent, and
the broker has to prove that it knows it too.

`scram` is a generator. It yields the bytes to send, and is sent the broker's answer; in between it
yields a `Derivation`, and is sent its result: that step is slow on purpose, and the caller runs it
where it blocks no event loop. The generator ends when the broker has proved itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias

from onceflow.client.errors import AuthenticationFailed

FEWEST_ITERATIONS: Final = 4096
"""RFC 7677 asks for it and Apache Kafka enforces it: with fewer, an eavesdropper could try
passwords on a recorded login cheaply."""
MOST_ITERATIONS: Final = 1_000_000
"""A second's work: more would let a false broker keep this machine busy."""
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

_MOST_DIGITS: Final = len(str(MOST_ITERATIONS))
_NO_CHANNEL_BINDING: Final = "n,,"
_IN_BASE64: Final = base64.b64encode(_NO_CHANNEL_BINDING.encode()).decode()


class Derivation(NamedTuple):
    """The slow step: the salted password."""

    hash_name: str
    password: bytes
    salt: bytes
    iterations: int

    def run(self) -> bytes:
        """Takes milliseconds to a second."""
        return hashlib.pbkdf2_hmac(self.hash_name, self.password, self.salt, self.iterations)


Conversation: TypeAlias = Generator[bytes | Derivation, bytes, None]


def plain(username: str, password: str) -> Conversation:
    """A PLAIN login (RFC 4616): name and password, as they are."""
    yield f"\0{username}\0{password}".encode()


def scram(mechanism: str, username: str, password: str, nonce: str) -> Conversation:
    """A SCRAM login; `nonce` is fresh and random for every login."""
    hash_name = HASHES[mechanism]
    name = username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    answer = _text((yield (_NO_CHANNEL_BINDING + first).encode()))
    combined, salt, iterations = _challenge(answer, nonce)
    salted = yield Derivation(hash_name, password.encode(), salt, iterations)

    last = f"c={_IN_BASE64},r={combined}"
    signed = f"{first},{answer},{last}".encode()
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored_key, signed, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    verdict = _text((yield f"{last},p={base64.b64encode(proof).decode()}".encode()))

    server_key = hmac.digest(salted, b"Server Key", hash_name)
    # Not to be left out after a success code: without this proof anybody can play the broker.
    _check_verdict(verdict, hmac.digest(server_key, signed, hash_name))


def _challenge(answer: str, nonce: str) -> tuple[str, bytes, int]:
    """The nonce of both sides together, the salt and the iterations, in this order."""
    fields = answer.split(",")
    names = [field[:2] for field in fields[:3]]
    if names != ["r=", "s=", "i="]:
        raise AuthenticationFailed("the broker's SCRAM challenge is malformed")
    combined, salt, iterations = (field[2:] for field in fields[:3])
    if not combined.startswith(nonce) or len(combined) == len(nonce):
        raise AuthenticationFailed(
            "the broker's SCRAM challenge does not continue our nonce: it may be a replay of "
            "an older login"
        )
    is_number = iterations.isascii() and iterations.isdigit() and len(iterations) <= _MOST_DIGITS
    count = int(iterations) if is_number else 0
    if not FEWEST_ITERATIONS <= count <= MOST_ITERATIONS:
        raise AuthenticationFailed(
            f"the broker asks for {iterations[:20]} SCRAM iterations; allowed are "
            f"{FEWEST_ITERATIONS} to {MOST_ITERATIONS}"
        )
    return combined, _from_base64(salt), count


def _check_verdict(verdict: str, expected: bytes) -> None:
    kind, said = verdict[:2], verdict[2:].partition(",")[0]
    if kind == "e=":
        raise AuthenticationFailed(f"the broker refuses the login: {said}")
    if kind != "v=" or not hmac.compare_digest(_from_base64(said), expected):
        raise AuthenticationFailed(
            "the broker could not prove that it knows the password: it is not the one it should be"
        )


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuthenticationFailed("the broker's SCRAM answer is not base64") from error


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("the broker's SCRAM answer is not text") from error
