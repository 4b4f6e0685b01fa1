"""TLS and logins against a real Apache Kafka, and what is said when they do not fit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from onceflow.client.errors.requests import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    NotKafka,
    TlsFailed,
)
from onceflow.client.net.cluster import Cluster
from onceflow.client.settings.clients import ClientSettings
from tests.interop.client.secured_kafka import MECHANISMS, PASSWORD, USER, Secured

pytestmark = pytest.mark.interop


async def reach(settings: ClientSettings) -> list[int]:
    async with Cluster(settings.bootstrap_servers, settings.cluster()) as cluster:
        await cluster.refresh()
        return cluster.node_ids


def refusal(kind: type[ClientError], settings: ClientSettings) -> str:
    with pytest.raises(kind) as raised:
        asyncio.run(reach(settings))
    return str(raised.value)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_logging_in_with_the_right_password_and_with_a_wrong_one(
    secured: Secured, mechanism: str
) -> None:
    login = {"sasl.mechanism": mechanism, "sasl.username": USER}
    right = secured.settings("SASL_PLAINTEXT", **login, **{"sasl.password": PASSWORD})
    assert asyncio.run(reach(right)) == [1]
    wrong = secured.settings("SASL_PLAINTEXT", **login, **{"sasl.password": "guess"})
    assert "refuses the login" in refusal(AuthenticationFailed, wrong)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_tls_with_certificates_of_both_sides(secured: Secured, loop: Any) -> None:
    own = {"ssl.certfile": str(secured.certificate), "ssl.keyfile": str(secured.key)}
    settings = secured.settings("SSL", **own, **{"ssl.cafile": str(secured.certificate)})
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(reach(settings)) == [1]


def test_a_login_inside_tls(secured: Secured) -> None:
    login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": USER, "sasl.password": PASSWORD}
    settings = secured.settings("SASL_SSL", **login, **{"ssl.cafile": str(secured.certificate)})
    assert asyncio.run(reach(settings)) == [1]


def test_a_certificate_that_nobody_vouches_for_is_refused(secured: Secured) -> None:
    said = refusal(TlsFailed, secured.settings("SSL"))
    assert "self-signed certificate" in said
    assert "ssl.cafile" in said


def test_a_certificate_for_another_name_is_refused(secured: Secured) -> None:
    port = secured.ports["SSL"]
    trust = {"security.protocol": "SSL", "ssl.cafile": str(secured.certificate)}
    elsewhere = ClientSettings.of({"bootstrap.servers": f"localhost:{port}", **trust})
    assert "localhost" in refusal(TlsFailed, elsewhere)


@pytest.mark.parametrize(
    ("port", "spoken", "kind", "said"),
    [
        ("SSL", "PLAINTEXT", NotKafka, "TLS"),
        ("PLAINTEXT", "SSL", NotKafka, "TLS handshake"),
        ("SASL_PLAINTEXT", "PLAINTEXT", ConnectionLost, "wants a login"),
        ("PLAINTEXT", "SASL_PLAINTEXT", AuthenticationFailed, "wants no login"),
    ],
)
def test_a_port_that_speaks_something_else_is_told(
    secured: Secured, port: str, spoken: str, kind: type[ClientError], said: str
) -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    settings = ClientSettings.of(
        {"bootstrap.servers": f"127.0.0.1:{secured.ports[port]}", "security.protocol": spoken}
        | (login if "SASL" in spoken else {}),
        socket_connection_setup_timeout_ms=5000,
    )
    assert said in refusal(kind, settings)
