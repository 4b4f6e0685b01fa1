"""An Apache Kafka with TLS and logins, and a certificate for it: one for all tests of a run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import admin as confluent_admin

from onceflow.client.settings.clients import ClientSettings
from tests.interop.real_kafka import SETTINGS
from tools.apache_kafka import ApacheKafka, free_ports
from tools.kafka_archive import quick_options

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


@contextmanager
def secured_kafka(jars: Path, directory: Path) -> Iterator[Secured]:
    certificate, key = make_certificate(directory)
    own = properties(directory, certificate, key)
    with SecuredKafka(
        jars, directory / "broker", properties=own, java_options=quick_options(jars)
    ) as kafka:
        add_scram_user(kafka.bootstrap)
        yield Secured(kafka.ports, certificate, key)
