"""What scripts about blocking workers share: drivers, writers, readers, answers that get lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from onceflow.client.errors.requests import ClientError, ConnectionLost
from onceflow.client.settings.clients import ProducerSettings, ReaderSettings
from onceflow.client.transactions.handoff import Claim, OpenTransaction
from onceflow.client.transactions.retrier import Reply, RequestAttempt
from onceflow.client.worker.partition_queue import WriteResult
from onceflow.client.worker.reader import BlockingReader
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.client.worker.writer import BlockingWriter
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.steps import create_topic
from tests.interop.broker.raw.transactions import wait_for_coordinators
from tests.interop.client.worker.worker_process import columns
from tests.interop.harness import Names, eventually

PATIENCE_MS: Final = 20_000
BOTH: Final = (2, 1)
"""The versions of transactions: the newer protocol, the older one."""


def settings(names: Names, label: str = "driver", **more: object) -> ProducerSettings:
    given = {
        "bootstrap_servers": names.bootstrap,
        "transactional_id": names(label),
        "delivery_timeout_ms": PATIENCE_MS,
        "request_timeout_ms": 5000,
        "linger_ms": 0,
        **more,
    }
    return ProducerSettings.of(**given)


def driver(names: Names, version: int, label: str = "driver", **more: object) -> TransactionClient:
    """Speaks one of the protocols, whatever the broker has finalized."""
    made = TransactionClient(settings(names, label, **more))
    made._cluster.transaction_version = lambda deadline: version  # type: ignore[method-assign]  # to have both
    return made


def topic(names: Names, label: str, partitions: int = 1) -> list[TopicPartition]:
    name = names(label)
    with RawConnection(names.bootstrap) as connection:
        wait_for_coordinators(connection)
        create_topic(connection, name, partitions=partitions)
    return [TopicPartition(name, number) for number in range(partitions)]


def write(transaction: OpenTransaction, place: TopicPartition, *values: str) -> WriteResult:
    """By a writer of its own, whose only partition it is."""
    with BlockingWriter(transaction.only([place])) as writer:
        writer.write(*place, columns(values))
        return writer.flush()[0]


def going_on(opened: OpenTransaction, place: TopicPartition, sequence: int) -> OpenTransaction:
    """The same transaction for somebody who goes on behind others."""
    return replace(opened, claims=(Claim(place, sequence),))


def outcome(call: Callable[..., object], *args: object) -> Any:
    """What a call returns, or what it raises: the name of the error and what is known."""
    try:
        return call(*args)
    except ClientError as error:
        return [type(error).__name__, error.outcome]


def reader(
    names: Names, isolation: str = "read_committed", seconds: float = 20.0
) -> BlockingReader:
    return BlockingReader(
        ReaderSettings.of(
            bootstrap_servers=names.bootstrap,
            isolation_level=isolation,
            default_api_timeout_ms=int(seconds * 1000),
            fetch_max_wait_ms=50,
        )
    )


def visible(
    names: Names, places: Sequence[TopicPartition], isolation: str = "read_committed"
) -> dict[str, list[str]]:
    """The values that a reader sees in each partition."""
    found = {}
    with reader(names, isolation) as reading:
        for place in places:
            values: list[Any] = []
            for batch in reading.read(*place, *reading.ends(*place)):
                values += batch.column("value").to_pylist()
            found[str(place)] = [value.decode() for value in values]
    return found


def settled(names: Names, places: Sequence[TopicPartition]) -> None:
    """Returns when no transaction is open there: brokers write markers after they have answered."""
    with reader(names) as committed, reader(names, "read_uncommitted") as everything:

        def is_settled(place: TopicPartition) -> bool:
            return committed.ends(*place) == everything.ends(*place)

        eventually(lambda: all(map(is_settled, places)), bool)


def epoch_of(finisher: TransactionClient) -> int:
    return finisher.identity.producer_epoch


def lose(finisher: TransactionClient, api: ApiKey, times: int, *, answers: bool) -> None:
    """From now on, so many requests of an API are lost, or only their answers."""
    perform, left = finisher._perform, times

    def losing(step: RequestAttempt) -> Reply:
        nonlocal left
        if step.request.api is not api or left <= 0:
            return perform(step)
        left -= 1
        if answers:
            perform(step)
        return ConnectionLost("lost for a test")

    finisher._perform = losing  # type: ignore[method-assign]  # a network that loses
