"""Logins: the conversation, every way in which it is refused, and who has to prove what."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from onceflow.client.errors.requests import AuthenticationFailed, ConnectionLost, RequestTimedOut
from onceflow.client.net.scram import (
    FEWEST_ITERATIONS,
    MOST_ITERATIONS,
    Derivation,
    plain,
    scram,
)
from onceflow.client.net.security import SASL_AUTHENTICATE, SASL_HANDSHAKE, Security
from onceflow.errors import InvalidSetting
from onceflow.runtime.net import Net
from onceflow.testing.world import World, run
from onceflow.wire.api import ApiKey
from onceflow.wire.frame import FrameReader, Scratch
from onceflow.wire.primitives import INT16, INT32, read_int, read_slice, read_text, text
from tests.unit.client.scripted_broker import PORT, FakeBroker, connect

# The example of RFC 7677.
USER, PASSWORD, NONCE = "user", "pencil", "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
ANSWER = (
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
VERDICT = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def login(challenge: str, verdict: str = VERDICT) -> list[bytes]:
    """What is sent when a broker says this."""
    conversation = scram("SCRAM-SHA-256", USER, PASSWORD, NONCE)
    said = [next(conversation)]
    heard = challenge
    while True:
        step = conversation.send(heard.encode())
        assert isinstance(step, Derivation)
        said.append(conversation.send(step.run()))
        try:
            conversation.send(verdict.encode())
        except StopIteration:
            return [each for each in said if isinstance(each, bytes)]


def test_the_example_of_the_standard() -> None:
    assert login(CHALLENGE) == [b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", ANSWER.encode()]


def test_letters_of_the_format_in_a_name_are_escaped() -> None:
    assert next(scram("SCRAM-SHA-512", "a=b,c", "p", "n")) == b"n,,n=a=3Db=2Cc,r=n"
    assert next(plain("a=b,c", "p ü")) == "\0a=b,c\0p ü".encode()


@pytest.mark.parametrize(
    ("challenge", "said"),
    [
        (CHALLENGE.replace("rOprNGfw", "xOprNGfw"), "does not continue our nonce"),
        ("r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not continue our"),
        (CHALLENGE.replace("4096", str(FEWEST_ITERATIONS - 1)), "4095 SCRAM iterations"),
        (CHALLENGE.replace("4096", str(MOST_ITERATIONS + 1)), "1000001 SCRAM iterations"),
        (CHALLENGE.replace("4096", "-5"), "-5 SCRAM iterations"),
        (CHALLENGE.replace("4096", "9" * 5000), "SCRAM iterations"),
        (CHALLENGE.replace("s=W22", "s=!"), "not base64"),
        ("m=must," + CHALLENGE, "is malformed"),
        ("", "is malformed"),
    ],
)
def test_a_challenge_that_is_weak_or_wrong_is_not_answered(challenge: str, said: str) -> None:
    with pytest.raises(AuthenticationFailed, match=said):
        login(challenge)


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (VERDICT.replace("6rri", "7rri"), "could not prove"),
        ("v=", "could not prove"),
        ("", "could not prove"),
        ("e=invalid-proof", "refuses the login: invalid-proof"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_not_trusted(verdict: str, said: str) -> None:
    with pytest.raises(AuthenticationFailed, match=said):
        login(CHALLENGE, verdict)


# --- on a connection ----------------------------------------------------------------------------


class Guard(FakeBroker):
    """A broker that wants a login first."""

    mechanisms = ("PLAIN", "SCRAM-SHA-512")
    handshake_error = 0

    def __init__(self, heard: list[bytes]) -> None:
        super().__init__({}, [])
        self._heard = heard
        self._frames = FrameReader(Scratch(), 1 << 20, self._on_request)

    def _on_request(self, frame: memoryview) -> bool:
        api, at = read_int(INT16, frame, 0)
        if api == ApiKey.API_VERSIONS:
            return self._on_frame(frame)
        _, at = read_text(False, frame, at + 2 + INT32.size)
        body = self._shake_hands(frame, at) if api == SASL_HANDSHAKE else b""
        if api == SASL_AUTHENTICATE:
            said, _ = read_slice(False, INT32, frame, at)
            self._heard.append(bytes(said or b""))
            body = self.answer(len(self._heard), bytes(said or b""))
        reply = bytes(frame[4:8]) + body
        self.transport.write(INT32.pack(len(reply)) + reply)
        return True

    def _shake_hands(self, frame: memoryview, at: int) -> bytes:
        wanted, _ = read_text(False, frame, at)
        code = self.handshake_error or (0 if wanted in self.mechanisms else 33)
        names = b"".join(text(False, each) for each in self.mechanisms)
        return INT16.pack(code) + INT32.pack(len(self.mechanisms)) + names

    def answer(self, turn: int, said: bytes) -> bytes:
        if said == b"\0user\0pencil":
            return answered(b"")
        return INT16.pack(58) + text(False, "wrong password") + INT32.pack(0) + bytes(8)


def answered(words: bytes) -> bytes:
    return INT16.pack(0) + text(False, None) + INT32.pack(len(words)) + words + bytes(8)


class ScramGuard(Guard):
    """Has the user of the example, with a password that is salted otherwise."""

    def answer(self, turn: int, said: bytes) -> bytes:
        salt = b"salt"
        if turn == 1:
            self._first = said.removeprefix(b"n,,")
            nonce = said.partition(b"r=")[2] + b"more"
            self._challenge = b"r=" + nonce + b",s=" + base64.b64encode(salt) + b",i=4096"
            return answered(self._challenge)
        salted = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), salt, 4096)
        signed = b",".join((self._first, self._challenge, said.partition(b",p=")[0]))
        key = hmac.digest(salted, b"Server Key", "sha512")
        signature = hmac.digest(key, signed, "sha512")
        return answered(b"v=" + base64.b64encode(signature))


class BadHandshake(Guard):
    handshake_error = 34


class Silent(Guard):
    def _shake_hands(self, frame: memoryview, at: int) -> bytes:
        self._frames = FrameReader(Scratch(), 1 << 20, lambda frame: True)
        return b"\x00\x00"


class HangsUp(Guard):
    def answer(self, turn: int, said: bytes) -> bytes:
        self.transport.close()
        return b""


def security(mechanism: str = "PLAIN", password: str = PASSWORD) -> Security:
    return Security(
        protocol="SASL_PLAINTEXT", mechanism=mechanism, username=USER, password=password
    )


def simulate(guard: type[Guard], program: Callable[[Net, list[bytes]], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        heard: list[bytes] = []
        await world.net.host("broker").listen("0.0.0.0", PORT, lambda: guard(heard))
        await program(world.net.host("client"), heard)

    run(1, main)


async def at_once(derivation: Derivation) -> bytes:
    return derivation.run()


@pytest.mark.parametrize(
    ("guard", "mechanism", "turns"), [(Guard, "PLAIN", 1), (ScramGuard, "SCRAM-SHA-512", 2)]
)
def test_a_connection_is_open_when_the_login_is_done(
    guard: type[Guard], mechanism: str, turns: int
) -> None:
    async def program(net: Net, heard: list[bytes]) -> None:
        connection = await connect(net, security=security(mechanism), derive=at_once)
        assert connection.is_open
        assert len(heard) == turns
        assert (PASSWORD.encode() in b"".join(heard)) == (mechanism == "PLAIN")

    simulate(guard, program)


@pytest.mark.parametrize(
    ("guard", "asked", "kind", "said"),
    [
        (Guard, security(password="x"), AuthenticationFailed, "refuses the login: wrong password"),
        (Guard, security("SCRAM-SHA-256"), AuthenticationFailed, "be PLAIN or SCRAM-SHA-512"),
        (
            ScramGuard,
            security("SCRAM-SHA-512", "x"),
            AuthenticationFailed,
            "could not prove that it knows the password",
        ),
        (BadHandshake, security(), AuthenticationFailed, "wants no login at this port"),
        (Silent, security(), AuthenticationFailed, "answers a login wrongly"),
        (HangsUp, security(), ConnectionLost, "closed the connection"),
    ],
)
def test_a_login_that_fails_is_told_and_leaves_nothing_open(
    guard: type[Guard], asked: Security, kind: type[Exception], said: str
) -> None:
    async def main(world: World) -> None:
        await world.net.host("broker").listen("0.0.0.0", PORT, lambda: guard([]))
        with pytest.raises(kind, match=said):
            await connect(world.net.host("client"), security=asked, derive=at_once)
        await asyncio.sleep(1)
        assert not world.net.connections

    run(1, main)


def test_a_slow_login_ends_with_the_time_for_connecting() -> None:
    async def never(derivation: Derivation) -> bytes:
        await asyncio.sleep(1000)
        return derivation.run()

    async def program(net: Net, heard: list[bytes]) -> None:
        started = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimedOut, match="login"):
            await connect(
                net, security=security("SCRAM-SHA-512"), derive=never, connect_timeout_s=3
            )
        assert asyncio.get_running_loop().time() - started == pytest.approx(3, abs=0.1)

    simulate(ScramGuard, program)


def test_files_for_tls_that_are_none_are_named(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("no certificate")
    with pytest.raises(InvalidSetting, match=r"ssl\.cafile = .*nothing\.pem: it cannot be used"):
        Security(protocol="SSL", ca_file=str(nothing)).tls_context()
    with pytest.raises(InvalidSetting, match=r"ssl\.certfile = .*missing\.pem: .*No such file"):
        Security(protocol="SSL", cert_file=str(tmp_path / "missing.pem")).tls_context()
    assert Security().tls_context() is None
