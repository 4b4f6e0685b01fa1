"""Transactions by a client that does next to nothing: how much of their time is the broker's.

    python -m bench.session.load_ready loop --bootstrap HOST:PORT --topic IN --out OUT ...

It reads nothing and decides nothing. Each transaction is a Produce with records that were written
before and a TxnOffsetCommit, sent together; then the EndTxn that brings the next epoch. What it
costs itself, a tenth of a millisecond, is stamping and framing these three, and the socket. A
process of its own, so that its cost is not the bench's; prints one line of JSON: seconds and the
CPU seconds of this process. Ends with an error at the first refusal.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import time
from itertools import cycle
from typing import Final

from bench.client.load_client import Numbers, Stopwatch
from bench.common.targets import BenchError, receive
from onceflow.client.address import parse_addresses
from onceflow.client.codec.produce import read_produce, write_produce
from onceflow.client.codec.transactions import (
    EndTxn,
    GroupMember,
    InitProducerIdRequest,
    OffsetToCommit,
    ProducerIdentity,
    TransactionRequest,
    TransactionResponse,
    TxnOffsetCommit,
    read_answer,
    versions_for,
)
from onceflow.client.producer.batch import ProducerBatch
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from onceflow.wire.header import request_header
from onceflow.wire.primitives import INT32, skip_tags
from onceflow.wire.transactions import ProducerIdAndEpoch

TRANSACTION_VERSION: Final = 2
PRODUCE_VERSION: Final = 12
TIMEOUT_MS: Final = 60_000
VALUE: Final = bytes(100)


class Ready:
    """One connection and one transactional id."""

    def __init__(self, bootstrap: str, topic: str, out: str) -> None:
        address = parse_addresses(bootstrap)[0]
        self._socket = socket.create_connection((address.host, address.port), TIMEOUT_MS / 1000)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._asked = 0
        self._out = out
        self._group = GroupMember(f"bench-ready-{time.monotonic_ns()}")
        self._offsets = ((TopicPartition(topic, 0), OffsetToCommit(1)),)
        self._who = ProducerIdentity(self._group.group_id)
        self._go_on_after(InitProducerIdRequest(self._who, TIMEOUT_MS))

    def transaction(self, batch: ProducerBatch) -> None:
        """One, of these records."""
        who = self._who
        batch.seal(ProducerIdAndEpoch(*who[1:]), 0, transactional=True)
        body = write_produce(
            PRODUCE_VERSION,
            {self._out: [(batch.partition.partition, batch.buffer)]},
            transactional_id=who.transactional_id,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
        )
        produce = self._framed(ApiKey.PRODUCE, PRODUCE_VERSION, b"".join(body))
        versions = versions_for(ApiKey.TXN_OFFSET_COMMIT, TRANSACTION_VERSION)
        offsets = TxnOffsetCommit(who, self._group, self._offsets, versions)
        self._socket.sendall(produce + self._request(offsets))
        for each in read_produce(PRODUCE_VERSION, self._answer()):
            check(each.error, ApiKey.PRODUCE)
        for _, code in self._read(offsets).partitions:
            check(code, ApiKey.TXN_OFFSET_COMMIT)
        versions = versions_for(ApiKey.END_TXN, TRANSACTION_VERSION)
        self._go_on_after(EndTxn(who, True, versions))

    def _go_on_after(self, request: TransactionRequest) -> None:
        """Under the identity that the answer gives."""
        self._socket.sendall(self._request(request))
        answer = self._read(request)
        check(answer.code, request.api)
        name = self._who.transactional_id
        self._who = ProducerIdentity(name, answer.producer_id, answer.producer_epoch)

    def _request(self, request: TransactionRequest) -> bytes:
        version = request.versions.newest
        return self._framed(request.api, version, request.body(version))

    def _read(self, request: TransactionRequest) -> TransactionResponse:
        return read_answer(request, request.versions.newest, self._answer())

    def _framed(self, api: ApiKey, version: int, body: bytes) -> bytes:
        self._asked += 1
        head = request_header(api, version, self._asked, "ready")
        return INT32.pack(len(head) + len(body)) + head + body

    def _answer(self) -> memoryview:
        (size,) = struct.unpack(">i", receive(self._socket, INT32.size))
        frame = memoryview(receive(self._socket, size))
        return frame[skip_tags(frame, INT32.size) :]


def check(code: int, api: ApiKey) -> None:
    if code:
        raise BenchError(f"{api.name} was refused: {ErrorCode(code).name}")


def written(out: str, partitions: int, records: int) -> list[ProducerBatch]:
    """A batch for each partition; its records are never written again."""
    batches = []
    for number in range(partitions):
        batch = ProducerBatch(TopicPartition(out, number), 0.0)
        for _ in range(records):
            batch.add(None, VALUE, time.time_ns() // 1_000_000, None, len(VALUE))
        batches.append(batch)
    return batches


def loop(arguments: argparse.Namespace) -> Numbers:
    ready = Ready(arguments.bootstrap, arguments.topic, arguments.out)
    batches = cycle(written(arguments.out, arguments.partitions, arguments.batch))
    for _ in range(arguments.warm_up):
        ready.transaction(next(batches))
    watch = Stopwatch()
    for _ in range(arguments.records // arguments.batch):
        ready.transaction(next(batches))
    return watch.numbers()


def main() -> None:
    parser = argparse.ArgumentParser(description="Transactions by ready-made requests.")
    parser.add_argument("load", choices=["loop"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="records of a transaction")
    parser.add_argument("--warm-up", type=int, default=50, help="transactions before the clock")
    try:
        print(json.dumps(loop(parser.parse_args())))
    except (BenchError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
