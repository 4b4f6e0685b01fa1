"""Settings under Kafka's names: what is read, what is refused, and in which words."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.net.retry import RetryPolicy
from onceflow.client.settings.clients import ClientSettings, ProducerSettings, ReaderSettings
from onceflow.errors import InvalidSetting


def refusal(kind: type[ClientSettings], settings: dict[str, Any]) -> str:
    with pytest.raises(InvalidSetting) as raised:
        kind.of(settings)
    return str(raised.value)


def test_dots_and_underscores_mean_the_same_and_text_is_read() -> None:
    dotted = ProducerSettings.of({"linger.ms": "20", "enable.idempotence": "true", "acks": "all"})
    assert dotted == ProducerSettings.of(linger_ms=20, enable_idempotence=True, acks=-1)
    assert dotted == ProducerSettings.of({"linger_ms": 20})
    assert (dotted.linger_ms, dotted.acks, dotted.delivery) == (20, -1, "idempotent")


def test_defaults_are_safe_ones() -> None:
    producer = ProducerSettings.of()
    assert producer.enable_idempotence
    assert producer.acks == -1
    assert producer.max_in_flight_requests_per_connection == 5
    assert producer.delivery == "idempotent"
    assert producer.ssl_check_hostname
    assert ReaderSettings.of().read_committed


def test_several_brokers_as_text_or_as_a_list() -> None:
    expected = (BrokerAddress("a", 1), BrokerAddress("b", 9092))
    assert ClientSettings.of(bootstrap_servers="a:1,b").bootstrap_servers == expected
    assert ClientSettings.of(bootstrap_servers=["a:1", "b"]).bootstrap_servers == expected
    assert "HOST:PORT" in refusal(ClientSettings, {"bootstrap.servers": "a:x"})


@pytest.mark.parametrize(
    ("delivery", "acks", "idempotent", "retries"),
    [
        ("at-most-once", 0, False, 0),
        ("at-least-once", -1, False, 2**31 - 1),
        ("idempotent", -1, True, 2**31 - 1),
        ("exactly-once", -1, True, 2**31 - 1),
    ],
)
def test_delivery_sets_the_others(delivery: str, acks: int, idempotent: bool, retries: int) -> None:
    identity = {"transactional.id": "t"} if delivery == "exactly-once" else {}
    made = ProducerSettings.of({"delivery": delivery, **identity})
    assert (made.acks, made.enable_idempotence, made.retries) == (acks, idempotent, retries)
    assert made.delivery == delivery


@pytest.mark.parametrize(
    ("settings", "delivery"),
    [
        ({"transactional.id": "t"}, "exactly-once"),
        ({"enable.idempotence": False}, "at-least-once"),
        ({"enable.idempotence": False, "acks": 0}, "at-most-once"),
        ({"enable.idempotence": False, "acks": 1}, None),
    ],
)
def test_what_was_chosen_by_single_keys_gets_its_name(
    settings: dict[str, Any], delivery: str | None
) -> None:
    assert ProducerSettings.of(settings).delivery == delivery


PRODUCER_CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"transactional.id": "t", "enable.idempotence": False},
        "transactional.id = 't' contradicts enable.idempotence = false: ",
    ),
    ({"acks": 1}, "acks = 1 contradicts enable.idempotence = true (by default): "),
    (
        {"acks": 0, "enable.idempotence": True},
        "acks = 0 contradicts enable.idempotence = true: ",
    ),
    (
        {"max.in.flight.requests.per.connection": 6},
        "max.in.flight.requests.per.connection = 6 contradicts enable.idempotence = true",
    ),
    ({"retries": 0}, "retries = 0 contradicts enable.idempotence = true (by default)"),
    (
        {"delivery": "exactly-once"},
        "delivery = 'exactly-once' contradicts transactional.id, which is not set: ",
    ),
    (
        {"delivery": "idempotent", "transactional.id": "t"},
        "delivery = 'idempotent' contradicts transactional.id = 't': ",
    ),
    (
        {"delivery": "at-least-once", "transactional.id": "t"},
        "delivery = 'at-least-once' contradicts transactional.id = 't': ",
    ),
    (
        {"delivery": "idempotent", "acks": 1},
        "delivery = 'idempotent' contradicts acks = 1: leave acks out, or choose another delivery",
    ),
    (
        {"delivery": "exactly-once", "transactional.id": "t", "enable.idempotence": False},
        "delivery = 'exactly-once' contradicts enable.idempotence = false: ",
    ),
    (
        {"delivery": "at-most-once", "retries": 3},
        "delivery = 'at-most-once' contradicts retries = 3: ",
    ),
    (
        {"delivery.timeout.ms": 1000, "request.timeout.ms": 900, "linger.ms": 200},
        "delivery.timeout.ms = 1000 contradicts linger.ms = 200 plus request.timeout.ms = 900: ",
    ),
    ({"batch.size": 2**21}, "batch.size = 2097152 contradicts max.request.size = 1048576 (by def"),
    (
        {"buffer.memory": 100},
        "max.request.size = 1048576 (by default) contradicts buffer.memory = ",
    ),
    ({"retry.backoff.ms": 5000}, "retry.backoff.ms = 5000 contradicts retry.backoff.max.ms = 1000"),
    (
        {"transaction.retry.backoff.ms": 500},
        "transaction.retry.backoff.ms = 500 contradicts transaction.retry.backoff.max.ms = 100",
    ),
]
READER_CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"fetch.min.bytes": 2**30}, "fetch.min.bytes = 1073741824 contradicts fetch.max.bytes = "),
    ({"fetch.max.wait.ms": 30_000}, "fetch.max.wait.ms = 30000 contradicts request.timeout.ms = "),
    ({"sasl.username": "u"}, "sasl.username = 'u' contradicts security.protocol = 'PLAINTEXT' (by"),
    (
        {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": "p"},
        "security.protocol = 'SASL_SSL' contradicts sasl.mechanism, which is not set: ",
    ),
    (
        {"security.protocol": "SASL_PLAINTEXT", "ssl.cafile": "f", "sasl.mechanism": "PLAIN"}
        | {"sasl.username": "u", "sasl.password": "p"},
        "ssl.cafile = 'f' contradicts security.protocol = 'SASL_PLAINTEXT': ",
    ),
    (
        {"security.protocol": "SSL", "ssl.keyfile": "k"},
        "ssl.keyfile = 'k' contradicts ssl.certfile, which is not set: ",
    ),
]


@pytest.mark.parametrize(("settings", "said"), PRODUCER_CONTRADICTIONS)
def test_contradictions_of_a_producer_name_both(settings: dict[str, Any], said: str) -> None:
    assert refusal(ProducerSettings, settings).startswith(said)


@pytest.mark.parametrize(("settings", "said"), READER_CONTRADICTIONS)
def test_contradictions_of_a_reader_name_both(settings: dict[str, Any], said: str) -> None:
    assert refusal(ReaderSettings, settings).startswith(said)


def test_without_idempotence_more_may_be_in_flight() -> None:
    made = ProducerSettings.of(
        delivery="at-least-once", max_in_flight_requests_per_connection=50, retries=7
    )
    assert (made.max_in_flight_requests_per_connection, made.retries) == (50, 7)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lingr.ms": 5}, "unknown setting 'lingr.ms'; did you mean 'linger.ms'?"),
        ({"isolation.level": "read_committed"}, "unknown setting 'isolation.level'"),
        (
            {"sasl.jaas.config": "x"},
            "sasl.jaas.config cannot be set: it is for Java; give sasl",
        ),
        ({"linger.ms": -1}, "linger.ms = -1 is not allowed; it may be a whole number from 0 to"),
        ({"linger.ms": "9" * 5000}, "linger.ms = '9999"),
        ({"linger.ms": "5s"}, "linger.ms = '5s' is not allowed"),
        ({"linger.ms": True}, "linger.ms = True is not allowed"),
        ({"acks": 2}, "acks = 2 is not allowed; it may be all, 1 or 0"),
        ({"acks": True}, "acks = True is not allowed"),
        (
            {"compression.type": "brotli"},
            "compression.type = 'brotli' is not allowed; it may be none",
        ),
        ({"enable.idempotence": "maybe"}, "enable.idempotence = 'maybe' is not allowed"),
        (
            {"delivery": "twice"},
            "delivery = 'twice' is not allowed; it may be at-most-once, at-least-once, i",
        ),
        ({"transactional.id": ""}, "transactional.id = '' is not allowed; it may be a text"),
        ({"sasl.password": 12345}, "sasl.password is not allowed; it may be a text"),
        (
            {"acks": "all", "linger_ms": 1, "linger.ms": 2},
            "'linger_ms' and 'linger.ms' are the same",
        ),
    ],
)
def test_a_wrong_key_or_value_is_told_with_what_would_be_right(
    settings: dict[str, Any], said: str
) -> None:
    assert refusal(ProducerSettings, settings).startswith(said)


LOGIN = {"sasl.mechanism": "scram-sha-512", "sasl.username": "u", "sasl.password": "hush"}


def test_passwords_are_not_shown() -> None:
    made = ClientSettings.of({"security.protocol": "sasl_ssl", "ssl.password": "quiet", **LOGIN})
    for shown in (repr(made), str(made), repr(made.security), repr(made.cluster())):
        assert not re.search("hush|quiet", shown)
    assert made.security.password == "hush"
    assert made.security.mechanism == "SCRAM-SHA-512"
    assert pickle.loads(pickle.dumps(made)) == made


def test_names_of_other_clients_are_understood() -> None:
    made = ClientSettings.of(
        {"security.protocol": "SSL", "ssl.ca.location": "a", "ssl.certificate.location": "b"}
    )
    assert (made.ssl_cafile, made.ssl_certfile) == ("a", "b")


def test_none_stands_for_what_is_left_out() -> None:
    assert ProducerSettings.of(transactional_id=None) == ProducerSettings.of()


def test_what_a_cluster_is_given() -> None:
    made = ProducerSettings.of(
        {"request.timeout.ms": 1500, "metadata.max.age.ms": 9000, "client.id": "me"},
        socket_connection_setup_timeout_ms=250,
        retry_backoff_ms=10,
    )
    cluster = made.cluster()
    assert cluster.client_id == "me"
    assert (cluster.request_timeout_s, cluster.connect_timeout_s) == (1.5, 0.25)
    assert cluster.metadata_max_age_s == 9
    assert cluster.retry == RetryPolicy(60, 0.01, 1)
    assert made.transactional_retry == RetryPolicy(120, 0.005, 0.1)
