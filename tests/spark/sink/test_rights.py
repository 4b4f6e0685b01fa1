"""What a query may not do is told before it starts: an Apache Kafka that asks for rights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import admin as confluent_admin

from onceflow.client.errors.requests import BrokerError
from onceflow.client.settings.clients import ProducerSettings
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.spark.errors.sink import SinkRefused
from onceflow.spark.sink.identity import SinkIdentity
from onceflow.spark.sink.options import SinkOptions
from onceflow.spark.sink.preflight import prepare_cluster
from tests.interop.client.secured_kafka import (
    PASSWORD,
    USER,
    SecuredKafka,
    make_certificate,
    properties,
)
from tests.interop.harness import eventually
from tests.interop.real_kafka import cannot_test
from tests.spark.sink.world import PATIENCE_S, make_topic

pytestmark = pytest.mark.interop

IDENTITY: Final = SinkIdentity.of_query("totals", None, "ledger")
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Whoever comes without a login, on another port: the broker itself, and this test.
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def strict(
    request: pytest.FixtureRequest, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredKafka]:
    if shutil.which("openssl") is None:
        cannot_test(request, "strict", "there is no openssl to make a certificate with")
    directory = tmp_path_factory.mktemp("strict-kafka")
    own = properties(directory, *make_certificate(directory)) | AUTHORIZER
    with SecuredKafka(kafka_jars, directory / "broker", properties=own) as kafka:
        yield kafka


def allow(kafka: SecuredKafka, kind: str, name: str, *operations: str) -> None:
    words: Any = confluent_admin
    admin: Any = words.AdminClient({"bootstrap.servers": kafka.bootstrap})
    rights = [
        words.AclBinding(
            words.ResourceType[kind],
            name,
            words.ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            words.AclOperation[operation],
            words.AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    for done in admin.create_acls(rights).values():
        done.result(PATIENCE_S)


def settings(kafka: SecuredKafka, **more: Any) -> ProducerSettings:
    return ProducerSettings.of(
        bootstrap_servers=f"127.0.0.1:{kafka.ports['SASL_PLAINTEXT']}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=USER,
        sasl_password=PASSWORD,
        transactional_id=IDENTITY.transactional_id,
        **more,
    )


def test_missing_rights_are_named(strict: SecuredKafka, caplog: pytest.LogCaptureFixture) -> None:
    out = make_topic(strict.bootstrap, "out")

    def problems() -> list[str]:
        options = SinkOptions(identity=IDENTITY, settings=settings(strict), topic=out)
        try:
            prepare_cluster(options, reads=True)
        except SinkRefused as refused:
            return sorted(refused.problems)
        return []

    def becomes(*expected: str) -> None:
        wanted = sorted(f"this user needs the right to {each}" for each in expected)
        # Brokers hear of a right a moment after it was given.
        assert eventually(problems, lambda found: found == wanted) == wanted

    allow(strict, "TOPIC", "ledger", "CREATE")
    becomes(f"DESCRIBE and WRITE topic {out!r}", "DESCRIBE and READ topic 'ledger'")
    allow(strict, "TOPIC", out, "DESCRIBE")
    allow(strict, "TOPIC", "ledger", "DESCRIBE")
    becomes(
        f"WRITE topic {out!r}",
        "READ topic 'ledger'",
        "READ group 'totals'",
        "READ group 'totals.ledger'",
    )
    allow(strict, "TOPIC", out, "WRITE")
    allow(strict, "TOPIC", "ledger", "READ")
    for group in (IDENTITY.group, IDENTITY.ledger_group):
        allow(strict, "GROUP", group, "READ")
    becomes()
    # The query can do without this one, at a cost.
    (warning,) = (each.message for each in caplog.records if each.name == "onceflow.spark")
    assert "the right to DESCRIBE_CONFIGS on the cluster" in warning
    with TransactionClient(settings(strict)) as finisher:
        with pytest.raises(BrokerError, match="may not use that transactional id"):
            finisher.init()
        allow(strict, "TRANSACTIONAL_ID", IDENTITY.transactional_id, "WRITE", "DESCRIBE")
        eventually(lambda: begun(finisher), bool)
    # The broker's settings cannot be seen: its refusal tells what is wrong with the timeout.
    with (
        TransactionClient(settings(strict, transaction_timeout_ms=900_001)) as late,
        pytest.raises(BrokerError, match=r"transaction\.max\.timeout\.ms"),
    ):
        late.init()


def begun(finisher: TransactionClient) -> bool:
    try:
        finisher.init()
    except BrokerError:
        return False
    return True
