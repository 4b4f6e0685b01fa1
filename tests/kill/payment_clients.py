"""Payments written and read through Kafka clients that others wrote, whichever is installed.

A writer numbers its payments, spreads them over the partitions in turn, and tells of each one that
was acknowledged. It is idempotent: what it sends again counts once, and in order. Both writers and
readers outlive a broker that is gone for a while.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from onceflow.errors import OnceflowError

TOPIC: Final = "payments"
PARTITIONS: Final = 4
LINGER_MS: Final = 5
SECONDS: Final = 60


class ClientMissing(OnceflowError):
    """No Kafka client that others wrote is installed."""


class WriteRefused(OnceflowError):
    """A client gave up on a record; the message is the client's."""


class Place(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


Acked = Callable[[int, Place], None]
"""Called with the number of a payment and the place that was acknowledged, on any thread."""


class Writer(Protocol):
    """A producer; `send` only queues."""

    def send(self, numbers: Iterable[int]) -> None: ...

    def close(self) -> None:
        """Returns when everything sent is acknowledged."""


class Reader(Protocol):
    """A consumer of all partitions, from their beginning on."""

    def poll(self) -> list[tuple[Place, int]]:
        """What has come, with the numbers of the payments; empty after a short wait."""

    def close(self) -> None: ...


class Client(NamedTuple):
    """A library, by the name that it is installed by."""

    package: str
    module: str
    write: Callable[[str, Acked], Writer]
    read: Callable[[str], Reader]


def encode(number: int) -> bytes:
    return b'{"payment": %d, "cents": 4200, "currency": "EUR"}' % number


def decode(value: bytes) -> int:
    return int(json.loads(value)["payment"])


# --- confluent-kafka ---------------------------------------------------------------------------

_LIBRDKAFKA: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "log_level": 0,
        "error_cb": lambda _: None,  # that a broker is gone is no news here
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
    }
)


class _ConfluentWriter:
    def __init__(self, bootstrap: str, acked: Acked) -> None:
        from confluent_kafka import Producer

        self._acked = acked
        self._refused: Exception | None = None
        self._producer = Producer(
            {
                **_LIBRDKAFKA,
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "message.timeout.ms": SECONDS * 1000,
            }
        )

    def send(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._producer.produce(
                TOPIC,
                encode(number),
                partition=number % PARTITIONS,
                on_delivery=partial(self._delivered, number),
            )
        self._producer.poll(0)
        if self._refused is not None:
            raise self._refused

    def _delivered(self, number: int, error: Any, message: Any) -> None:
        if error is None:
            self._acked(number, Place(message.partition(), message.offset()))
        else:
            self._refused = WriteRefused(f"confluent-kafka: {error}")

    def close(self) -> None:
        left = self._producer.flush(SECONDS)
        if left:
            raise WriteRefused(f"confluent-kafka: {left} records without an answer")
        self.send(())


class _ConfluentReader:
    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        self._consumer = Consumer(
            {
                **_LIBRDKAFKA,
                "bootstrap.servers": bootstrap,
                "group.id": "demo",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.assign(
            [TopicPartition(TOPIC, each, OFFSET_BEGINNING) for each in range(PARTITIONS)]
        )

    def poll(self) -> list[tuple[Place, int]]:
        messages: list[Any] = self._consumer.consume(2000, 0.1)
        return [
            (Place(each.partition(), each.offset()), decode(each.value()))
            for each in messages
            if each.error() is None
        ]

    def close(self) -> None:
        self._consumer.close()


# --- kafka-python ------------------------------------------------------------------------------


class _KafkaPythonWriter:
    def __init__(self, bootstrap: str, acked: Acked) -> None:
        from kafka import KafkaProducer

        _hush("kafka")
        self._acked = acked
        self._refused: Exception | None = None
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            reconnect_backoff_max_ms=200,
        )

    def send(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            sent = self._producer.send(TOPIC, encode(number), partition=number % PARTITIONS)
            sent.add_callback(partial(self._delivered, number)).add_errback(self._failed)
        if self._refused is not None:
            raise self._refused

    def _delivered(self, number: int, found: Any) -> None:
        self._acked(number, Place(found.partition, found.offset))

    def _failed(self, error: BaseException) -> None:
        self._refused = WriteRefused(f"kafka-python: {error}")

    def close(self) -> None:
        self._producer.flush(SECONDS)
        self._producer.close(SECONDS)
        self.send(())


class _KafkaPythonReader:
    def __init__(self, bootstrap: str) -> None:
        from kafka import KafkaConsumer, TopicPartition

        _hush("kafka")
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            reconnect_backoff_max_ms=200,
            max_poll_records=2000,
        )
        self._consumer.assign([TopicPartition(TOPIC, each) for each in range(PARTITIONS)])

    def poll(self) -> list[tuple[Place, int]]:
        return _decoded(self._consumer.poll(timeout_ms=100))

    def close(self) -> None:
        self._consumer.close()


# --- aiokafka ----------------------------------------------------------------------------------


class _LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _AiokafkaWriter:
    def __init__(self, bootstrap: str, acked: Acked) -> None:
        _hush("aiokafka")
        self._acked = acked
        self._refused: Exception | None = None
        self._loop = _LoopThread()
        self._producer = self._loop.run(self._start(bootstrap))

    async def _start(self, bootstrap: str) -> Any:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            request_timeout_ms=SECONDS * 1000,
        )
        await producer.start()
        return producer

    def send(self, numbers: Iterable[int]) -> None:
        self._loop.run(self._send(numbers))
        if self._refused is not None:
            raise self._refused

    async def _send(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            sent = await self._producer.send(TOPIC, encode(number), partition=number % PARTITIONS)
            sent.add_done_callback(partial(self._delivered, number))

    def _delivered(self, number: int, sent: asyncio.Future[Any]) -> None:
        if error := sent.exception():
            self._refused = WriteRefused(f"aiokafka: {error}")
        else:
            found = sent.result()
            self._acked(number, Place(found.partition, found.offset))

    def close(self) -> None:
        self._loop.run(self._producer.flush())
        self._loop.run(self._producer.stop())
        self._loop.close()
        if self._refused is not None:
            raise self._refused


class _AiokafkaReader:
    def __init__(self, bootstrap: str) -> None:
        _hush("aiokafka")
        self._loop = _LoopThread()
        self._consumer = self._loop.run(self._start(bootstrap))

    async def _start(self, bootstrap: str) -> Any:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )
        consumer.assign([TopicPartition(TOPIC, each) for each in range(PARTITIONS)])
        await consumer.start()
        return consumer

    def poll(self) -> list[tuple[Place, int]]:
        return _decoded(self._loop.run(self._consumer.getmany(timeout_ms=100, max_records=2000)))

    def close(self) -> None:
        self._loop.run(self._consumer.stop())
        self._loop.close()


def _decoded(batches: Mapping[Any, Iterable[Any]]) -> list[tuple[Place, int]]:
    return [
        (Place(record.partition, record.offset), decode(record.value))
        for records in batches.values()
        for record in records
    ]


def _hush(library: str) -> None:
    """A broker that is killed on purpose is no news, but to these libraries an error."""
    logging.getLogger(library).setLevel(logging.CRITICAL)


CLIENTS: Final = (
    Client("confluent-kafka", "confluent_kafka", _ConfluentWriter, _ConfluentReader),
    Client("kafka-python", "kafka", _KafkaPythonWriter, _KafkaPythonReader),
    Client("aiokafka", "aiokafka", _AiokafkaWriter, _AiokafkaReader),
)
"""In the order of preference."""


def find_client(package: str | None = None) -> Client:
    """The one of that name, or the best there is."""
    for client in CLIENTS:
        if package in (None, client.package) and find_spec(client.module) is not None:
            return client
    names = [client.package for client in CLIENTS]
    if package is not None and package not in names:
        raise ClientMissing(f"{package!r} is none of the clients {', '.join(names)}")
    raise ClientMissing(
        f"there is no {package or ', '.join(names)} here; install it: "
        f"pip install {package or names[0]}"
    )
