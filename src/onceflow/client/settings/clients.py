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
from dataclasses import dataclass
from typing import Any, Final, Self

from onceflow.client.address import (
    BrokerAddress,
    comma_separated,
    parse_addresses,
)
from onceflow.client.net import (
    MECHANISMS,
    PROTOCOLS,
    ClusterSettings,
    RetryPolicy,
    Security,
)
from onceflow.client.settings.rules import (
    ALL_REPLICAS,
    DELIVERIES,
    IMPLIED,
    RawSettings,
    check,
    name_of_delivery,
)
from onceflow.errors import InvalidSetting
from onceflow.records import DECOMPRESSED_LIMIT
from onceflow.settings import (
    INT_MAX,
    LONG_MAX,
    SECRET,
    TEXT,
    YES_OR_NO,
    Catalogue,
    NotAllowed,
    SettingKind,
    merged,
    one_of,
    setting,
    settings_of,
    whole_number,
)

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

_ACKS: Final = {"all": ALL_REPLICAS, "-1": ALL_REPLICAS, "0": 0, "1": 1}
_SOME: Final = whole_number(1)
_ANY: Final = whole_number(0)


def _read_addresses(value: object) -> tuple[BrokerAddress, ...]:
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        value = ",".join(value)
    try:
        return parse_addresses(TEXT.read(value))
    except InvalidSetting as error:
        raise NotAllowed(f"{_ADDRESSES.allowed} ({error})") from error


def _read_acks(value: object) -> int:
    found = _ACKS.get(str(value).lower())
    if found is None or isinstance(value, bool):
        raise ValueError(value)
    return found


_ADDRESSES: Final = SettingKind(
    "list", "HOST:PORT, or several separated by commas", _read_addresses, comma_separated
)
_REPLICAS: Final = SettingKind(
    "string", "all, 1 or 0", _read_acks, lambda acks: "all" if acks == ALL_REPLICAS else str(acks)
)


def catalogue_of(kind: type[ClientSettings]) -> Catalogue:
    """What a kind of client understands."""
    return Catalogue(settings_of(kind), _ALIASES, _REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What every client has. Made by `of`."""

    bootstrap_servers: tuple[BrokerAddress, ...] = setting(
        _ADDRESSES,
        (BrokerAddress("127.0.0.1", 9092),),
        "The brokers to connect to first; they name all others. The port is 9092 by default.",
    )
    client_id: str = setting(TEXT, "onceflow", "The name that brokers log for this client.")
    request_timeout_ms: int = setting(
        _SOME, 30_000, "How long a request waits for its answer before the connection is given up."
    )
    socket_connection_setup_timeout_ms: int = setting(
        _SOME, 10_000, "How long opening a connection may take, TLS and login included."
    )
    default_api_timeout_ms: int = setting(
        _SOME,
        60_000,
        "How long requests are retried; those of a producer have delivery.timeout.ms.",
    )
    retry_backoff_ms: int = setting(
        _ANY, 100, "The pause before a request is retried; it grows with each retry."
    )
    retry_backoff_max_ms: int = setting(_ANY, 1000, "The longest pause before a retry.")
    metadata_max_age_ms: int = setting(
        _SOME, 300_000, "The age at which the client refreshes its metadata of the cluster."
    )
    security_protocol: str = setting(
        one_of(*PROTOCOLS, any_case=True),
        "PLAINTEXT",
        "Whether connections are encrypted (SSL), and whether the client logs in (SASL).",
    )
    sasl_mechanism: str | None = setting(
        one_of(*MECHANISMS, any_case=True), None, "How the client logs in."
    )
    sasl_username: str | None = setting(TEXT, None, "The user name to log in with.")
    sasl_password: str | None = setting(
        SECRET, None, "The password to log in with; it is never shown."
    )
    ssl_cafile: str | None = setting(
        TEXT,
        None,
        "A PEM file with the authorities that may sign brokers' certificates.",
        unset="those of the system",
    )
    ssl_certfile: str | None = setting(
        TEXT, None, "A PEM file with the client's own certificate, for brokers that ask for one."
    )
    ssl_keyfile: str | None = setting(
        TEXT, None, "A PEM file with the key of that certificate.", unset="in ssl.certfile"
    )
    ssl_password: str | None = setting(SECRET, None, "The password of that key; it is never shown.")
    ssl_check_hostname: bool = setting(
        YES_OR_NO,
        True,
        "Whether a broker's certificate must name the host that the client connects to.",
    )

    @classmethod
    def of(cls, settings: Mapping[str, object] | None = None, /, **named: object) -> Self:
        """From keys with dots or underscores; raises `InvalidSetting`."""
        catalogue = catalogue_of(cls)
        written = merged(catalogue, settings or {}, named)
        given = {key: catalogue.read(key, value) for key, value in written.items()}
        values = cls._completed(given).items()
        made = cls(**{catalogue.settings[key].attribute: value for key, value in values})
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

    delivery: str | None = setting(
        one_of(*DELIVERIES, any_case=True),
        None,
        "The guarantee in one word; it sets acks, enable.idempotence and retries.",
        unset="idempotent, or what the other settings come to",
    )
    """None for a mixture that has no name (`acks=1`)."""
    acks: int = setting(
        _REPLICAS, ALL_REPLICAS, "How many replicas must have a batch before it is acknowledged."
    )
    """-1: all in-sync replicas."""
    enable_idempotence: bool = setting(
        YES_OR_NO, True, "Whether brokers recognise a batch that is sent again, and store it once."
    )
    transactional_id: str | None = setting(
        TEXT,
        None,
        "The name under which this producer's transactions go on when it is started again.",
    )
    transaction_timeout_ms: int = setting(
        _SOME, 60_000, "The age at which brokers abort a transaction that is still open."
    )
    transaction_two_phase_commit_enable: bool = setting(
        YES_OR_NO,
        False,
        "Whether a program outside of Kafka decides how transactions end; they have no timeout.",
    )
    transaction_retry_backoff_ms: int = setting(
        _ANY,
        5,
        "As retry.backoff.ms, for requests of a transaction: brokers often refuse those for a few "
        "milliseconds.",
    )
    transaction_retry_backoff_max_ms: int = setting(
        _ANY, 100, "The longest pause before a retry of a request of a transaction."
    )
    max_in_flight_requests_per_connection: int = setting(
        _SOME, 5, "The most requests in flight to one broker; with idempotence at most 5."
    )
    linger_ms: int = setting(_ANY, 5, "How long a batch that is not full waits for more records.")
    batch_size: int = setting(_SOME, 16_384, "The bytes at which a batch is full.")
    buffer_memory: int = setting(
        whole_number(1, LONG_MAX), 33_554_432, "Bytes of records that may wait to be sent."
    )
    compression_type: str = setting(
        one_of(*CODECS, any_case=True), "none", "The codec that batches are compressed with."
    )
    delivery_timeout_ms: int = setting(
        _SOME, 120_000, "How long the producer tries to deliver a record, all retries included."
    )
    retries: int = setting(
        _ANY, INT_MAX, "How often a batch is sent again, within delivery.timeout.ms."
    )
    max_request_size: int = setting(_SOME, 1_048_576, "The largest request that is sent, in bytes.")
    max_block_ms: int = setting(
        _ANY, 60_000, "How long `send` waits for free buffer memory and for metadata of a topic."
    )
    allow_auto_create_topics: bool = setting(
        YES_OR_NO,
        True,
        "Whether sending to a topic that is not there lets brokers create it that do so "
        "(`auto.create.topics.enable`).",
    )

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

    isolation_level: str = setting(
        one_of(*ISOLATION_LEVELS, any_case=True),
        "read_committed",
        "Whether records of transactions that are open or aborted are read, too.",
    )
    fetch_min_bytes: int = setting(
        _SOME, 1, "The least that a broker answers with before fetch.max.wait.ms is over."
    )
    fetch_max_bytes: int = setting(_SOME, 52_428_800, "The most that one answer may hold.")
    max_partition_fetch_bytes: int = setting(
        _SOME, 1_048_576, "The most that one answer may hold of a partition."
    )
    fetch_max_wait_ms: int = setting(
        _ANY, 500, "How long a broker waits for fetch.min.bytes before it answers."
    )
    max_decompressed_batch_bytes: int = setting(
        whole_number(1, 2**30),
        DECOMPRESSED_LIMIT,
        "A batch that grows to more is not read: a few kilobytes can stand for gigabytes.",
    )

    @property
    def read_committed(self) -> bool:
        return self.isolation_level == "read_committed"
