"""Our client on Apache Kafka 3.9, which has no epochs for single transactions: the older protocol,
as it is spoken by brokers that know no other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from onceflow.client.producer.producer import Producer
from onceflow.client.settings.clients import ProducerSettings
from onceflow.client.transactions.states import ProducerState
from onceflow.client.worker.transaction_client import TransactionClient
from tests.interop.broker.clients.scripts import ready_topic
from tests.interop.client.cluster.one_node_suite import (
    SCRIPTS,
    answered_differently,
)
from tests.interop.client.consumer.polled_consumers import script as blocking
from tests.interop.client.producer_suite import PRODUCER_TESTS
from tests.interop.client.session import scripts as session_scripts
from tests.interop.client.worker import scripts
from tests.interop.harness import Names, Script, differences, heard, run
from tests.interop.real_kafka import EAGER, SETTINGS, cannot_test
from tools.apache_kafka import ApacheKafka
from tools.kafka_archive import quick_options
from tools.kafka_jars import OLDER_KAFKA_VERSION, KafkaJarsError, ensure_kafka_jars

pytestmark = pytest.mark.interop

OLDER_PROTOCOL: Final = (1,)
SESSIONS: Final[tuple[Script, ...]] = (
    *map(blocking, session_scripts.SCRIPTS),
    session_scripts.rebalance_inside_a_transaction,
    session_scripts.the_same_without_the_generation,
)


@pytest.fixture(scope="module")
def older_kafka(
    request: pytest.FixtureRequest, kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of Apache Kafka 3.9; `kafka_jars` has made sure that there is a Java."""
    assert kafka_jars.is_dir()
    try:
        jars = ensure_kafka_jars(OLDER_KAFKA_VERSION)
    except KafkaJarsError as error:
        cannot_test(request, "older_kafka", str(error))
    directory = tmp_path_factory.mktemp("older-kafka")
    quick = quick_options(jars)
    properties = {**SETTINGS, **EAGER}
    with ApacheKafka(jars, directory, properties=properties, java_options=quick) as kafka:
        yield kafka.bootstrap


@pytest.fixture
def names(older_kafka: str) -> Names:
    return Names.fresh(older_kafka)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_it_answers_as_the_newer_one(
    names: Names, apache_kafka: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the older protocol, which scripts that speak both of them speak last."""
    reference = heard(script, apache_kafka)
    monkeypatch.setattr(scripts, "BOTH", OLDER_PROTOCOL)
    found = run(script, names.bootstrap)
    assert differences(script.__name__, reference[-len(found) :], found, ()) == []


@pytest.mark.parametrize("script", SESSIONS, ids=lambda script: script.__name__)
def test_sessions_do_as_on_the_newer_one(names: Names, apache_kafka: str, script: Script) -> None:
    """There every transaction has an epoch of its own, here the generation alone fences."""
    assert answered_differently(script, apache_kafka, names.bootstrap) == []


def test_the_protocol_is_chosen_by_what_the_cluster_has_finalized(names: Names) -> None:
    settings = ProducerSettings.of(
        bootstrap_servers=names.bootstrap, transactional_id=names("blocking")
    )
    topic = ready_topic(names)

    async def main() -> int:
        async with Producer(names.bootstrap, transactional_id=names("async")) as producer:
            async with producer.transaction() as transaction:
                await transaction.send(topic, b"a")
            machine = producer._machine
            assert machine is not None
            return machine.transaction_version

    assert asyncio.run(main()) == 0
    with TransactionClient(settings) as finisher:
        finisher.init()
        assert finisher.begin().transaction_version == 1
        assert finisher.state is ProducerState.IN_TRANSACTION
        finisher.abort()


def test_an_abort_brings_a_new_epoch_and_sequences_from_the_start(names: Names) -> None:
    """The older protocol shares one epoch between transactions, but goes on with another one after
    an abort; sequences restart under it, and go on as long as it stays."""
    topic = ready_topic(names)

    async def main() -> list[tuple[int, int]]:
        seen = []
        async with Producer(names.bootstrap, transactional_id=names("id")) as producer:
            await producer.init_transactions()
            for number in range(6):
                await producer.begin_transaction()
                await (await producer.send(topic, b"%d" % number, partition=0))
                machine = producer._machine
                assert machine is not None
                (following,) = producer._sequences.next_sequences().values()
                seen.append((machine.identity.producer_epoch, following))
                if number % 3 == 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        return seen

    assert asyncio.run(main()) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


# All that the producer is checked for on the newer one, with `names` from above.
globals().update(PRODUCER_TESTS)
