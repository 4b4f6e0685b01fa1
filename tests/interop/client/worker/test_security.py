"""TLS and logins of blocking connections against a real Apache Kafka."""

from __future__ import annotations

import time

import pytest

from onceflow.client.errors.requests import AuthenticationFailed, TlsFailed
from onceflow.client.settings.clients import ClientSettings
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.runtime.clock import RealClock
from onceflow.runtime.rand import RealRand
from tests.interop.client.secured_kafka import MECHANISMS, PASSWORD, USER, Secured

pytestmark = pytest.mark.interop


def reach(settings: ClientSettings) -> int:
    """The transaction version of the cluster, over a connection that was really opened."""
    cluster = BlockingCluster(settings.bootstrap_servers, settings, RealClock(), RealRand())
    try:
        return cluster.transaction_version(time.monotonic() + 20)
    finally:
        cluster.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_logging_in_with_the_right_password_and_with_a_wrong_one(
    secured: Secured, mechanism: str
) -> None:
    login = {"sasl.mechanism": mechanism, "sasl.username": USER}
    right = {**login, "sasl.password": PASSWORD}
    assert reach(secured.settings("SASL_PLAINTEXT", **right)) == 2
    wrong = {**login, "sasl.password": "guess"}
    with pytest.raises(AuthenticationFailed, match="refuses the login"):
        reach(secured.settings("SASL_PLAINTEXT", **wrong))


def test_tls_with_certificates_of_both_sides(secured: Secured) -> None:
    own = {"ssl.certfile": str(secured.certificate), "ssl.keyfile": str(secured.key)}
    assert reach(secured.settings("SSL", **own, **{"ssl.cafile": str(secured.certificate)})) == 2
    with pytest.raises(TlsFailed, match="self-signed certificate"):
        reach(secured.settings("SSL", **own))


def test_a_login_inside_tls(secured: Secured) -> None:
    login = {
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.cafile": str(secured.certificate),
    }
    assert reach(secured.settings("SASL_SSL", **login)) == 2
