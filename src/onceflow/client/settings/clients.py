"""The settings of a client, under Kafka's own names: `acks`, `transactional.id`, ..., written with
dots in a mapping or with underscores as keyword arguments.

    ProducerSettings.of({"bootstrap.servers": "localhost:9092"}, linger_ms=20)

All errors are reported before anything is sent: a key that does not exist, a value that is not
allowed, two settings that contradict each other. Nothing is weakened silently: `acks=1` alone is
refused, because idempotence, which is on by default, needs all replicas. `delivery` says in one
word what is promised and sets the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from onceflow.client.address import (
    BrokerAddress,
)
from onceflow.client.net import (
    MECHANISMS,
    PROTOCOLS,
    ClusterSettings,
    RetryPolicy,
    Security,
)
from onceflow.client.settings.rules import DELIVERIES, IMPLIED, RawSettings, check, name_of_delivery
from onceflow.client.settings.values import (
    ALL_REPLICAS,
    LARGEST_INT,
    NotAllowed,
    acks,
    addresses,
    one_of,
    secret,
    setting,
    unknown,
    whole_number,
    words,
    yes_or_no,
)
from onceflow.errors import InvalidSetting
from onceflow.records import DECOMPRESSED_LIMIT

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")

_ALIASES: Final[Mapping[str, str]] = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.location": "ssl.cafile",
    "ssl.certificate.location": "ssl.certfile",
    "ssl.key.location": "ssl.keyfile",
    "ssl.key.password": "ssl.password",
}
_PEM: Final = "give PEM files instead: ssl.cafile (whom to trust), ssl.certfile and ssl.keyfile"
_REFUSED: Final[Mapping[str, str]] = {
    "sasl.jaas.config": "it is for Java; give sasl.username and sasl.password instead",
    "ssl.truststore.location": _PEM,
    "ssl.truststore.password": _PEM,
    "ssl.keystore.location": _PEM,
    "ssl.keystore.password": _PEM,
    "ssl.endpoint.identification.algorithm": "set ssl.check.hostname to true or false instead",
}

_SOME_TIME: Final = whole_number(1)
_ANY_TIME: Final = whole_number(0)
_SOME_BYTES: Final = whole_number(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What every client has. Made by `of`."""

    bootstrap_servers: tuple[BrokerAddress, ...] = setting(
        addresses, (BrokerAddress("127.0.0.1", 9092),)
    )
    client_id: str = setting(words, "onceflow")
    request_timeout_ms: int = setting(_SOME_TIME, 30_000)
    socket_connection_setup_timeout_ms: int = setting(_SOME_TIME, 10_000)
    """For opening a connection, TLS and login included."""
    default_api_timeout_ms: int = setting(_SOME_TIME, 60_000)
    """For trying again what is not sent by a producer."""
    retry_backoff_ms: int = setting(_ANY_TIME, 100)
    retry_backoff_max_ms: int = setting(_ANY_TIME, 1000)
    metadata_max_age_ms: int = setting(_SOME_TIME, 300_000)
    security_protocol: str = setting(one_of(*PROTOCOLS), "PLAINTEXT")
    sasl_mechanism: str | None = setting(one_of(*MECHANISMS), None)
    sasl_username: str | None = setting(words, None)
    sasl_password: str | None = setting(secret, None)
    ssl_cafile: str | None = setting(words, None)
    ssl_certfile: str | None = setting(words, None)
    ssl_keyfile: str | None = setting(words, None)
    ssl_password: str | None = setting(secret, None)
    ssl_check_hostname: bool = setting(yes_or_no, True)

    @classmethod
    def of(cls, settings: Mapping[str, object] | None = None, /, **named: object) -> Self:
        """From keys with dots or underscores; raises `InvalidSetting`."""
        given = _read(cls, _merged(settings or {}, named))
        made = cls(**{key.replace(".", "_"): value for key, value in cls._completed(given).items()})
        check(made, given)
        return made

    @classmethod
    def _completed(cls, given: RawSettings) -> Mapping[str, Any]:
        return given

    def cluster(self) -> ClusterSettings:
        """What a `Cluster` of this client goes by."""
        return ClusterSettings(
            client_id=self.client_id,
            connect_timeout_s=self.socket_connection_setup_timeout_ms / 1000,
            request_timeout_s=self.request_timeout_ms / 1000,
            metadata_max_age_s=self.metadata_max_age_ms / 1000,
            retry=self.retry,
            security=self.security,
        )

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(
            self.default_api_timeout_ms / 1000,
            self.retry_backoff_ms / 1000,
            self.retry_backoff_max_ms / 1000,
        )

    @property
    def security(self) -> Security:
        return Security(
            protocol=self.security_protocol,
            mechanism=self.sasl_mechanism,
            username=self.sasl_username,
            password=self.sasl_password,
            ca_file=self.ssl_cafile,
            cert_file=self.ssl_certfile,
            key_file=self.ssl_keyfile,
            key_password=self.ssl_password,
            check_hostname=self.ssl_check_hostname,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings(ClientSettings):
    """What a producer has besides."""

    delivery: str | None = setting(one_of(*DELIVERIES), None)
    """What is promised; None for a mixture that has no name (`acks=1`)."""
    acks: int = setting(acks, ALL_REPLICAS)
    """-1: all in-sync replicas."""
    enable_idempotence: bool = setting(yes_or_no, True)
    transactional_id: str | None = setting(words, None)
    transaction_timeout_ms: int = setting(_SOME_TIME, 60_000)
    transaction_two_phase_commit_enable: bool = setting(yes_or_no, False)
    """Transactions without a timeout: a program outside of Kafka decides how they end."""
    transaction_retry_backoff_ms: int = setting(_ANY_TIME, 5)
    transaction_retry_backoff_max_ms: int = setting(_ANY_TIME, 100)
    """In a transaction brokers often refuse for a few milliseconds."""
    max_in_flight_requests_per_connection: int = setting(whole_number(1), 5)
    linger_ms: int = setting(_ANY_TIME, 5)
    batch_size: int = setting(_SOME_BYTES, 16_384)
    buffer_memory: int = setting(whole_number(1, 2**63 - 1), 33_554_432)
    compression_type: str = setting(one_of(*CODECS), "none")
    delivery_timeout_ms: int = setting(_SOME_TIME, 120_000)
    retries: int = setting(whole_number(0), LARGEST_INT)
    max_request_size: int = setting(_SOME_BYTES, 1_048_576)
    max_block_ms: int = setting(_ANY_TIME, 60_000)
    allow_auto_create_topics: bool = setting(yes_or_no, True)
    """Whether sending to a topic that is not there lets brokers create it that do so
    (`auto.create.topics.enable`)."""

    @classmethod
    def _completed(cls, given: RawSettings) -> Mapping[str, Any]:
        implied = IMPLIED.get(given.get("delivery", ""), {})
        complete = {**implied, **given}
        complete["delivery"] = name_of_delivery(complete)
        return complete

    @property
    def transactional_retry(self) -> RetryPolicy:
        """For requests of a transaction; they end with `delivery.timeout.ms`."""
        return RetryPolicy(
            self.delivery_timeout_ms / 1000,
            self.transaction_retry_backoff_ms / 1000,
            self.transaction_retry_backoff_max_ms / 1000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings(ClientSettings):
    """What a reader has besides."""

    isolation_level: str = setting(one_of(*ISOLATION_LEVELS), "read_committed")
    fetch_min_bytes: int = setting(_SOME_BYTES, 1)
    fetch_max_bytes: int = setting(_SOME_BYTES, 52_428_800)
    max_partition_fetch_bytes: int = setting(_SOME_BYTES, 1_048_576)
    fetch_max_wait_ms: int = setting(_ANY_TIME, 500)
    max_decompressed_batch_bytes: int = setting(whole_number(1, 2**30), DECOMPRESSED_LIMIT)
    """A batch that grows to more is not read: a few kilobytes can stand for gigabytes."""

    @property
    def read_committed(self) -> bool:
        return self.isolation_level == "read_committed"


def _merged(settings: Mapping[str, object], named: Mapping[str, object]) -> dict[str, object]:
    """All keys with dots; None stands for what is left out."""
    merged: dict[str, object] = {}
    spelled: dict[str, str] = {}
    for written, value in (*settings.items(), *named.items()):
        dotted = written.replace("_", ".")
        key = _ALIASES.get(dotted, dotted)
        if key in spelled:
            raise InvalidSetting(f"{spelled[key]!r} and {written!r} are the same; give one of them")
        spelled[key] = written
        if value is not None:
            merged[key] = value
    return merged


def _read(kind: type[ClientSettings], written: Mapping[str, object]) -> RawSettings:
    """The values; raises `InvalidSetting` for the first key or value that is none."""
    readers = {each.name.replace("_", "."): each.metadata["read"] for each in fields(kind)}
    given: dict[str, Any] = {}
    for key, value in written.items():
        if key in _REFUSED:
            raise InvalidSetting(f"{key} is not understood: {_REFUSED[key]}")
        if key not in readers:
            raise unknown(key, readers)
        try:
            given[key] = readers[key](value)
        except NotAllowed as error:
            shown = "" if readers[key] is secret else f" = {value!r}"
            raise InvalidSetting(f"{key}{shown} is not allowed; it may be {error}") from error
    return given
