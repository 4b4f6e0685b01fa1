"""Blocking connections: what answers at an address, logins, forks."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from onceflow.client.address import BrokerAddress
from onceflow.client.codec.versions import VersionRange
from onceflow.client.errors.requests import (
    ApiNotServed,
    AuthenticationFailed,
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    CrossedFork,
    NotKafka,
    RequestTimedOut,
    TlsFailed,
)
from onceflow.client.net.security import SASL_AUTHENTICATE, SASL_HANDSHAKE, Security
from onceflow.client.settings.clients import ClientSettings
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.client.worker.connection import BlockingConnection
from onceflow.errors import InvariantViolated
from onceflow.runtime.clock import RealClock
from onceflow.runtime.rand import RealRand
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.primitives import INT16, INT32
from tests.unit.client.worker.socket_broker import ORDERS, ScriptedBroker

NO_ERROR, REFUSED = INT16.pack(0), INT16.pack(58)
NO_TEXT = INT16.pack(-1)
LOGIN = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="ann", password="secret")


def connect(
    address: BrokerAddress, seconds: float = 5.0, security: Security | None = None
) -> BlockingConnection:
    deadline = time.monotonic() + seconds
    return BlockingConnection.open(
        address, deadline, clock=RealClock(), rand=RealRand(), security=security or Security()
    )


@contextmanager
def something(answer: bytes | None) -> Iterator[BrokerAddress]:
    """A server that answers the first bytes of anybody with these; None: with nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(1000)
                if answer is not None:
                    accepted.sendall(answer)
                else:
                    accepted.recv(1000)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield BrokerAddress(*listener.getsockname()[:2])
        thread.join(10)


def test_a_closed_port_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = BrokerAddress(*listener.getsockname()[:2])
    with pytest.raises(BrokerUnreachable, match="check host and port"):
        connect(address)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00", b"", None]
)
def test_what_is_no_broker_is_told_in_time(answer: bytes | None) -> None:
    with something(answer) as address, pytest.raises(NotKafka):
        connect(address, 0.3)


def test_a_port_without_tls_is_told() -> None:
    with something(b"\x00\x00\x00\x00") as address, pytest.raises(TlsFailed, match="TLS port"):
        connect(address, security=Security(protocol="SSL"))


def test_versions_and_features_are_agreed_on() -> None:
    with ScriptedBroker() as broker:
        connection = connect(broker.address)
        assert connection.version_of(ApiKey.END_TXN, VersionRange(3, 9)) == 5
        with pytest.raises(ApiNotServed):
            connection.version_of(ApiKey.END_TXN, VersionRange(9, 9))
        connection.close()
        assert not connection.is_open


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(NO_ERROR, None), (REFUSED, AuthenticationFailed)],
)
def test_a_login(answer: bytes, kind: type[ClientError] | None) -> None:
    heard: list[bytes] = []

    def authenticate(body: memoryview) -> bytes:
        heard.append(bytes(body[INT32.size :]))
        return answer + NO_TEXT + INT32.pack(0) + bytes(8)

    with ScriptedBroker() as broker:
        broker.extra[SASL_HANDSHAKE] = lambda body: NO_ERROR + INT32.pack(0)
        broker.extra[SASL_AUTHENTICATE] = authenticate
        if kind is None:
            connect(broker.address, security=LOGIN).close()
        else:
            with pytest.raises(kind):
                connect(broker.address, security=LOGIN)
    assert heard == [b"\0ann\0secret"]


def test_an_answer_that_does_not_come_ends_the_connection() -> None:
    with ScriptedBroker(hold=[2]) as broker:
        connection = connect(broker.address)
        connection.send(ApiKey.PRODUCE, 12, (b"\x00" * 9,), time.monotonic() + 5)
        with pytest.raises(InvariantViolated):
            connection.exchange(ApiKey.METADATA, 12, (b"",), time.monotonic() + 5)
        with pytest.raises(RequestTimedOut) as problem:
            connection.receive(time.monotonic() + 0.1)
        assert problem.value.outcome == "unknown"
        assert not connection.is_open


def test_a_request_that_came_too_late_is_not_sent_and_disturbs_no_other() -> None:
    with ScriptedBroker() as broker:
        connection = connect(broker.address)
        with pytest.raises(RequestTimedOut) as problem:
            connection.send(ApiKey.PRODUCE, 12, (b"\x00" * 9,), time.monotonic())
        assert problem.value.outcome == "not applied"
        assert connection.is_open
        assert ApiKey.PRODUCE not in broker.asked
        connection.close()


def test_what_was_sent_may_be_applied_though_the_client_was_closed_meanwhile() -> None:
    """Whoever takes it for not applied does it again."""
    with ScriptedBroker(hold=[2]) as broker:
        connection = connect(broker.address)
        connection.send(ApiKey.PRODUCE, 12, (b"\x00" * 9,), time.monotonic() + 5)
        connection.close()  # by another thread
        with pytest.raises(ConnectionLost) as problem:
            connection.receive(time.monotonic() + 5)
        assert problem.value.outcome == "unknown"


def in_a_child(act: Callable[[], int]) -> int:
    """The exit code of a forked child that does this."""
    child = os.fork()
    if not child:
        code = 99
        try:
            code = act()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_connection_does_not_cross_a_fork_and_a_cluster_opens_its_own() -> None:
    with ScriptedBroker() as broker:
        cluster = BlockingCluster((broker.address,), ClientSettings.of(), RealClock(), RealRand())
        deadline = time.monotonic() + 20
        connection = cluster.leader(ORDERS, deadline)

        def use_it() -> int:
            try:
                connection.send(ApiKey.METADATA, 12, (b"",), deadline)
            except CrossedFork:
                return 7
            return 1

        def open_another() -> int:
            cluster.refresh({"orders"}, deadline)
            return 8 if cluster.leader(ORDERS, deadline) is not connection else 1

        assert in_a_child(use_it) == 7
        assert in_a_child(open_another) == 8
        assert cluster.leader(ORDERS, deadline) is connection
        cluster.refresh({"orders"}, deadline)
        cluster.close()


def test_a_partition_without_a_leader_or_a_name_is_an_error_of_the_cluster() -> None:
    with ScriptedBroker() as broker:
        cluster = BlockingCluster((broker.address,), ClientSettings.of(), RealClock(), RealRand())
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            cluster.leader(TopicPartition("orders", 9), time.monotonic() + 20)
        cluster.close()


def test_a_closed_cluster_opens_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may close it at any time, also in the midst of opening a connection."""
    with ScriptedBroker() as broker:
        cluster = BlockingCluster((broker.address,), ClientSettings.of(), RealClock(), RealRand())
        opened: list[BlockingConnection] = []
        open_one = BlockingConnection.open

        def closed_meanwhile(*given: Any, **named: Any) -> BlockingConnection:
            opened.append(open_one(*given, **named))
            cluster.close()
            return opened[-1]

        monkeypatch.setattr(BlockingConnection, "open", closed_meanwhile)
        for _ in range(2):
            with pytest.raises(ConnectionClosed, match="closed meanwhile"):
                cluster.leader(ORDERS, time.monotonic() + 20)
        assert [each.is_open for each in opened] == [False]


def test_a_spare_connection_that_waits_is_ended_when_there_is_another() -> None:
    with ScriptedBroker(hold=[9]) as broker:
        cluster = BlockingCluster((broker.address,), ClientSettings.of(), RealClock(), RealRand())
        deadline = time.monotonic() + 20
        found = []
        for _ in range(3):
            found.append(cluster.any_broker(deadline))
            found[-1].send(ApiKey.PRODUCE, 12, (b"\x00" * 9,), deadline)
        assert [each.is_open for each in found] == [True, False, True]
        cluster.close()
        assert not any(each.is_open for each in found)
