"""TLS and logins against a real Apache Kafka, and what is said when they do not fit."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import uvloop
from confluent_kafka import admin as confluent_admin

from onceflow.client.cluster import Cluster
from onceflow.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    NotKafka,
    TlsFailed,
)
from onceflow.client.settings import ClientSettings
from tests.interop.conftest import SETTINGS, cannot_test
from tools.apache_kafka import ApacheKafka, free_ports

pytestmark = pytest.mark.interop

USER: Final = "alice"
PASSWORD: Final = "a, secret=word ü"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES: Final = "org.apache.kafka.common.security"


class SecuredKafka(ApacheKafka):
    """Has a listener of each kind; `ports` by protocol."""

    ports: dict[str, int]

    def _write_config(self, port: int, controller_port: int) -> None:
        kinds = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
        self.ports = {"PLAINTEXT": port, **dict(zip(kinds, free_ports(len(kinds)), strict=True))}
        listeners = {**self.ports, "CONTROLLER": controller_port}
        self._properties = {
            **self._properties,
            "listeners": ",".join(
                f"{name}://127.0.0.1:{number}" for name, number in listeners.items()
            ),
        }
        super()._write_config(port, controller_port)


class Secured(NamedTuple):
    """A running broker, and a certificate that it trusts and shows."""

    ports: Mapping[str, int]
    certificate: Path
    key: Path

    def settings(self, protocol: str, **others: Any) -> ClientSettings:
        """For the port of one protocol, spoken as `security_protocol` says."""
        port = self.ports[protocol]
        return ClientSettings.of(
            {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": protocol} | others
        )


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for this machine that vouches for itself, and its key."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=tests")
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    return certificate, key


def properties(directory: Path, certificate: Path, key: Path) -> dict[str, str]:
    both = directory / "keystore.pem"
    both.write_text(key.read_text() + certificate.read_text())
    names = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    logins = {
        "plain": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        "scram-sha-256": f"{_MODULES}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{_MODULES}.scram.ScramLoginModule required;",
    }
    return {
        **SETTINGS,
        "listener.security.protocol.map": ",".join(
            [*(f"{name}:{name}" for name in names), "CONTROLLER:PLAINTEXT"]
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
        "listener.name.ssl.ssl.client.auth": "required",
        **{
            f"listener.name.{listener}.{mechanism}.sasl.jaas.config": text.replace("ü", "\\u00fc")
            for listener in ("sasl_plaintext", "sasl_ssl")
            for mechanism, text in logins.items()
        },
    }


def add_scram_user(bootstrap: str) -> None:
    admin: Any = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})
    scram: Any = confluent_admin
    for mechanism in (scram.ScramMechanism.SCRAM_SHA_256, scram.ScramMechanism.SCRAM_SHA_512):
        info = scram.ScramCredentialInfo(mechanism, 4096)
        change = scram.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([change]).values():
            done.result(30)


@pytest.fixture(scope="module")
def secured(
    request: pytest.FixtureRequest, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    if shutil.which("openssl") is None:
        cannot_test(request, "secured", "there is no openssl to make a certificate with")
    directory = tmp_path_factory.mktemp("secured-kafka")
    certificate, key = make_certificate(directory)
    own = properties(directory, certificate, key)
    with SecuredKafka(kafka_jars, directory / "broker", properties=own) as kafka:
        add_scram_user(kafka.bootstrap)
        yield Secured(kafka.ports, certificate, key)


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
