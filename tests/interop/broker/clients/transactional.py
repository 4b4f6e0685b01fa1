"""One face for the transactional producers of Python's Kafka clients, and for their consumers of
committed records. Each adapter only translates; errors go by Kafka's names, or the client's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition as AiokafkaPartition
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from tests.interop.broker.clients import client_kafka_python as kp
from tests.interop.broker.clients.client_aiokafka import Loop, refused as aiokafka_refused
from tests.interop.broker.clients.client_confluent import refused as confluent_refused
from tests.interop.broker.clients.face import Place, Refused
from tests.interop.harness import Names, Script, Transcript

SECONDS: Final = 20.0
TIMEOUT_MS: Final = 60_000
QUIET_SECONDS: Final = 0.2
Sent = list[int | str]
"""For each record its offset, or the name of its error."""


class TxnProducer(Protocol):
    """A producer of transactions, or without a name an idempotent one."""

    def begin(self) -> None: ...
    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> Sent:
        """Sends, and waits for every answer."""

    def send_offsets(self, offsets: Mapping[Place, int], group: str) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def drop(self) -> None:
        """Ends as a crash does: nothing is committed or aborted."""


class TxnClient(Protocol):
    """What scripts ask of a client."""

    name: str

    def __init__(self, bootstrap: str) -> None: ...
    def producer(self, name: str | None, *, timeout_ms: int = TIMEOUT_MS) -> TxnProducer:
        """A producer that is ready for its first transaction."""

    def read(self, place: Place, count: int, *, committed: bool) -> tuple[list[Any], int]:
        """Offset and value of the first records, as many as are expected, and of those that come
        a little later unexpectedly; the consumer's position after them."""

    def close(self) -> None: ...


TxnScript = Callable[[TxnClient, Names, Transcript], None]


def gather(poll: Callable[[], list[Any]], count: int) -> list[Any]:
    """What polls bring: until there are enough and nothing more comes for a while."""
    found: list[Any] = []
    deadline = time.monotonic() + SECONDS
    quiet = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < (deadline if len(found) < count else quiet):
        if more := poll():
            found += more
            quiet = time.monotonic() + QUIET_SECONDS
    return found


class ConfluentProducer:
    """librdkafka's."""

    def __init__(self, configs: Mapping[str, Any], *, transactional: bool) -> None:
        self._producer = Producer(dict(configs))
        if transactional:
            self._call(self._producer.init_transactions, SECONDS)

    def _call(self, act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except KafkaException as error:
            raise confluent_refused(error.args[0]) from error

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> Sent:
        results: Sent = ["not delivered"] * len(values)

        def report(number: int) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                results[number] = confluent_refused(error).name if error else message.offset()

            return delivered

        for number, value in enumerate(values):
            act = self._producer.produce
            self._call(act, topic, value, b"k", partition, report(number))
        # Not flush: it fails, and does not say how, where the producer is shut out.
        deadline = time.monotonic() + SECONDS
        while "not delivered" in results and time.monotonic() < deadline:
            self._call(self._producer.poll, 0.05)
        return results

    def send_offsets(self, offsets: Mapping[Place, int], group: str) -> None:
        rows = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        consumer = Consumer({"group.id": group, "bootstrap.servers": "", "log_level": "0"})
        metadata = consumer.consumer_group_metadata()
        consumer.close()
        self._call(self._producer.send_offsets_to_transaction, rows, metadata, SECONDS)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, SECONDS)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, SECONDS)

    def drop(self) -> None:
        del self._producer


class ConfluentTransactions:
    """confluent-kafka."""

    name = "confluent"

    def __init__(self, bootstrap: str) -> None:
        self._common: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": "0"}

    def producer(self, name: str | None, *, timeout_ms: int = TIMEOUT_MS) -> ConfluentProducer:
        configs = {**self._common, "enable.idempotence": True, "acks": "all", "linger.ms": 5}
        if name is not None:
            configs |= {"transactional.id": name, "transaction.timeout.ms": timeout_ms}
        return ConfluentProducer(configs, transactional=name is not None)

    def read(self, place: Place, count: int, *, committed: bool) -> tuple[list[Any], int]:
        isolation = "read_committed" if committed else "read_uncommitted"
        configs = {**self._common, "group.id": "unused", "fetch.wait.max.ms": 20}
        consumer = Consumer({**configs, "isolation.level": isolation})
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING)])
        found = gather(lambda: consumer.consume(500, 0.05), count)
        (position,) = consumer.position([TopicPartition(*place)])
        consumer.close()
        return [(each.offset(), each.value()) for each in found], int(position.offset)

    def close(self) -> None:
        pass


class AiokafkaProducer:
    """aiokafka's."""

    def __init__(self, loop: Loop, configs: Mapping[str, Any]) -> None:
        self._loop = loop
        self._producer = loop.run(self._start(configs))

    async def _start(self, configs: Mapping[str, Any]) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**configs)
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> Sent:
        found: Sent = self._loop.run(self._send(topic, values, partition))
        return found

    async def _send(self, topic: str, values: Sequence[bytes], partition: int) -> Sent:
        send = self._producer.send
        futures = [await send(topic, value, b"k", partition) for value in values]
        return [await self._offset(future) for future in futures]

    async def _offset(self, future: Any) -> int | str:
        try:
            return int((await future).offset)
        except AiokafkaError as error:
            return aiokafka_refused(error).name

    def send_offsets(self, offsets: Mapping[Place, int], group: str) -> None:
        rows = {AiokafkaPartition(*place): offset for place, offset in offsets.items()}
        self._loop.run(self._producer.send_offsets_to_transaction(rows, group))

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction())

    def drop(self) -> None:
        self._loop.run(self._producer.stop())


class AiokafkaTransactions:
    """aiokafka."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = Loop()

    def producer(self, name: str | None, *, timeout_ms: int = TIMEOUT_MS) -> AiokafkaProducer:
        configs = {"bootstrap_servers": self._bootstrap, "acks": "all", "linger_ms": 5}
        configs |= {"enable_idempotence": True, "transactional_id": name}
        configs |= {"transaction_timeout_ms": timeout_ms}
        return AiokafkaProducer(self._loop, configs)

    def read(self, place: Place, count: int, *, committed: bool) -> tuple[list[Any], int]:
        found: tuple[list[Any], int] = self._loop.run(self._read(place, count, committed))
        return found

    async def _read(self, place: Place, count: int, committed: bool) -> tuple[list[Any], int]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if committed else "read_uncommitted",
            fetch_max_wait_ms=20,
        )
        part = AiokafkaPartition(*place)
        consumer.assign([part])
        await consumer.start()
        found: list[Any] = []
        deadline = asyncio.get_running_loop().time() + SECONDS
        while len(found) < count and asyncio.get_running_loop().time() < deadline:
            found += (await consumer.getmany(timeout_ms=50)).get(part, [])
        found += (await consumer.getmany(timeout_ms=int(QUIET_SECONDS * 1000))).get(part, [])
        position = await consumer.position(part)
        await consumer.stop()
        return [(each.offset, each.value) for each in found], position

    def close(self) -> None:
        self._loop.close()


class KafkaPythonProducer:
    """kafka-python's."""

    def __init__(self, configs: Mapping[str, Any], *, transactional: bool) -> None:
        self._producer = kp.KafkaProducer(**configs)
        if transactional:
            try:
                kp.translated(self._producer.init_transactions)
            except Refused:
                self.drop()
                raise

    def begin(self) -> None:
        kp.translated(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> Sent:
        send = self._producer.send
        futures = [kp.translated(send, topic, value, b"k", partition=partition) for value in values]
        kp.translated(self._producer.flush, SECONDS)
        results: Sent = []
        for future in futures:
            try:
                results.append(kp.translated(future.get, SECONDS).offset)
            except Refused as refusal:
                results.append(refusal.name)
        return results

    def send_offsets(self, offsets: Mapping[Place, int], group: str) -> None:
        rows = {
            kp.TopicPartition(*place): kp.OffsetAndMetadata(offset, "", -1)
            for place, offset in offsets.items()
        }
        kp.translated(self._producer.send_offsets_to_transaction, rows, group)

    def commit(self) -> None:
        kp.translated(self._producer.commit_transaction)

    def abort(self) -> None:
        kp.translated(self._producer.abort_transaction)

    def drop(self) -> None:
        self._producer.close(timeout=SECONDS)


class KafkaPythonTransactions:
    """kafka-python."""

    name = "kafka_python"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def producer(self, name: str | None, *, timeout_ms: int = TIMEOUT_MS) -> KafkaPythonProducer:
        configs: dict[str, Any] = {"bootstrap_servers": self._bootstrap, "acks": "all"}
        configs |= {"enable_idempotence": True, "transactional_id": name, "linger_ms": 5}
        configs |= {"transaction_timeout_ms": timeout_ms}
        return KafkaPythonProducer(configs, transactional=name is not None)

    def read(self, place: Place, count: int, *, committed: bool) -> tuple[list[Any], int]:
        consumer = kp.KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
            fetch_max_wait_ms=20,
        )
        part = kp.TopicPartition(*place)
        consumer.assign([part])
        found = gather(lambda: consumer.poll(timeout_ms=50).get(part, []), count)
        position = consumer.position(part)
        consumer.close()
        return [(each.offset, each.value) for each in found], position

    def close(self) -> None:
        pass


def heard(act: Callable[..., Any], *arguments: Any) -> object:
    """What a call brings, or the name of what it raises: Kafka's name where it has one."""
    try:
        return act(*arguments)
    except Refused as refusal:
        return refusal.name
    except Exception as error:
        # Clients that are shut out break their own rules, too.
        return type(error).__name__


TXN_CLIENTS: Final[tuple[type[TxnClient], ...]] = (
    ConfluentTransactions,
    AiokafkaTransactions,
    KafkaPythonTransactions,
)


def with_client(make: type[TxnClient], script: TxnScript) -> Script:
    """The script, run with a client of its own; its name says which."""

    def run(bootstrap: str, names: Names, transcript: Transcript) -> None:
        client = make(bootstrap)
        try:
            script(client, names, transcript)
        finally:
            client.close()

    run.__name__ = f"{make.__name__}:{script.__name__}"
    return run
