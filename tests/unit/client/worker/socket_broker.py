"""A broker by script behind real sockets, for tests of blocking clients."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from onceflow.client.address import BrokerAddress
from onceflow.client.codec.versions import SPOKEN, VersionRange
from onceflow.client.settings.clients import ProducerSettings
from onceflow.client.transactions.handoff import Claim, OpenTransaction
from onceflow.records.batch import BatchHeader, read_header
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.codec import encode, message_class
from onceflow.wire.header import read_request_header, response_header
from onceflow.wire.primitives import INT32
from onceflow.wire.produce import ProduceResult, read_produce_request, write_produce_response
from onceflow.wire.schema import recast
from tests.unit.client.scripted_broker import api_versions, metadata

CLOSE: Final = "close"
ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 1)

Script = Callable[[dict[TopicPartition, BatchHeader]], Any]
"""From the batches of a Produce to the error code of each partition, or `CLOSE`."""


class Seen(NamedTuple):
    """A Produce that came."""

    version: int
    transactional_id: str | None
    batches: dict[TopicPartition, bytes]


class ScriptedBroker:
    """Leads every partition but those that are `elsewhere`. Answers Produce by a list of scripts,
    the last of which goes on for ever. `hold` requests of Produce are taken before one is answered.
    """

    def __init__(
        self,
        *scripts: Script,
        hold: Sequence[int] = (),
        offer: Mapping[ApiKey, VersionRange] = SPOKEN,
    ) -> None:
        self.scripts = deque(scripts or (accept,))
        self._hold = deque(hold)
        self.held: list[tuple[socket.socket, int, int, memoryview]] = []
        self._offer = offer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.address = BrokerAddress(*self._listener.getsockname()[:2])
        self.leaders: dict[TopicPartition, BrokerAddress] = {}
        self.leaderless: set[TopicPartition] = set()
        self.produced: list[Seen] = []
        self._came = threading.Condition()
        self.offsets: dict[TopicPartition, int] = {}
        self.asked: list[ApiKey] = []
        self.slams = 0
        """So many connections are hung up at once."""
        self.extra: dict[int, Callable[[memoryview], bytes]] = {}

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                self._sockets.append(accepted)
                self._start(self._serve, accepted)

    def _serve(self, accepted: socket.socket) -> None:
        with accepted, accepted.makefile("rb") as stream, suppress(OSError):
            while size := stream.read(INT32.size):
                frame = stream.read(INT32.unpack(size)[0])
                if not self._handle(accepted, memoryview(bytearray(frame))):
                    return

    def _handle(self, to: socket.socket, frame: memoryview) -> bool:
        if self.slams:
            self.slams -= 1
            return False
        header = read_request_header(frame)
        body = frame[header.body_at :]
        if header.api_key in self.extra:
            answer = INT32.pack(header.correlation_id) + self.extra[header.api_key](body)
            to.sendall(INT32.pack(len(answer)) + answer)
            return True
        key = ApiKey(header.api_key)
        self.asked.append(key)
        if key is not ApiKey.PRODUCE:
            return self._reply(to, key, header.version, header.correlation_id, self._known(key))
        with self._came:
            self.held.append((to, header.version, header.correlation_id, body))
            self._came.notify_all()
        if self._hold and len(self.held) < self._hold[0]:
            return True
        if self._hold:
            self._hold.popleft()
        held, self.held = self.held, []
        goes_on = True
        for each in held:
            goes_on = self._produce(*each) and goes_on
        return goes_on

    def _known(self, key: ApiKey) -> Any:
        if key is ApiKey.API_VERSIONS:
            return api_versions(self._offer)
        addresses = dict(enumerate(dict.fromkeys((self.address, *self.leaders.values()))))
        numbers = {address: number for number, address in addresses.items()}
        topics: dict[str, dict[int, int]] = {}
        for place in (ORDERS, BILLS):
            leader = self.leaders.get(place, self.address)
            number = -1 if place in self.leaderless else numbers[leader]
            topics.setdefault(place.topic, {})[place.partition] = number
        return metadata(topics, addresses)

    def _reply(
        self, to: socket.socket, key: ApiKey, version: int, number: int, answer: Any
    ) -> bool:
        body = answer
        if not isinstance(answer, bytes):
            body = encode(recast(answer, message_class(key, version, "response")))
        reply = response_header(key, version, number) + body
        to.sendall(INT32.pack(len(reply)) + reply)
        return True

    def _produce(self, to: socket.socket, version: int, number: int, body: memoryview) -> bool:
        request = read_produce_request(body, 0, version)
        batches = {
            TopicPartition(str(topic), each.partition): bytes(each.records or b"")
            for topic, partitions in request.topics
            for each in partitions
        }
        with self._came:
            self.produced.append(Seen(version, request.transactional_id, batches))
            self._came.notify_all()
        script = self.scripts[0] if len(self.scripts) == 1 else self.scripts.popleft()
        verdict = script({place: read_header(batch) for place, batch in batches.items()})
        if verdict == CLOSE:
            to.shutdown(socket.SHUT_RDWR)
            return False
        answer: list[Any] = []
        for place, batch in batches.items():
            code = verdict.get(place, 0)
            offset = -1
            if not code:
                offset = self.offsets.setdefault(place, 0)
                self.offsets[place] += read_header(batch).record_count
            answer.append((place.topic, [ProduceResult(place.partition, code, offset)]))
        return self._reply(
            to, ApiKey.PRODUCE, version, number, write_produce_response(answer, version)
        )

    def until_held(self, times: int) -> None:
        """Waits until so many requests of Produce have come that are not answered yet."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.held) >= times, 10)

    def until_produced(self, times: int) -> None:
        """Waits until so many requests of Produce have come."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.produced) >= times, 10)

    def sequences(self, place: TopicPartition) -> list[int]:
        """The first sequences of the batches that came for a partition, in order."""
        return [
            read_header(seen.batches[place]).base_sequence
            for seen in self.produced
            if place in seen.batches
        ]


def accept(batches: dict[TopicPartition, BatchHeader]) -> Any:
    return {}


def refuse(code: int, *places: TopicPartition) -> Script:
    """All partitions, or some."""
    return lambda batches: dict.fromkeys(places or batches, code)


def hang_up(batches: dict[TopicPartition, BatchHeader]) -> Any:
    return CLOSE


def opened(broker: ScriptedBroker, version: int = 2) -> OpenTransaction:
    return OpenTransaction(
        transactional_id="payments",
        producer_id=7,
        producer_epoch=3,
        transaction_version=version,
        timeout_ms=60_000,
        bootstrap=(broker.address,),
        claims=(Claim(ORDERS), Claim(BILLS)),
    )


def patience(seconds: float = 20.0, **more: object) -> ProducerSettings:
    milliseconds = int(seconds * 1000)
    given: dict[str, object] = {
        "delivery_timeout_ms": milliseconds,
        "request_timeout_ms": milliseconds,
        "linger_ms": 0,
        **more,
    }
    return ProducerSettings.of(**given)


def rows(count: int, size: int = 10) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"x" * size] * count, pa.binary())})
