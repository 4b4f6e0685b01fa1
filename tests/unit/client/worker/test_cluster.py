"""A blocking cluster that threads share, as the driver of a Spark query and the threads that answer
its tasks do; and what it asks for again, and what not."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import onceflow
from onceflow.client.errors.requests import BrokerError
from onceflow.client.settings.clients import ProducerSettings
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.runtime.clock import RealClock
from onceflow.runtime.rand import RealRand
from onceflow.wire.api import ApiKey
from tests.unit.client.worker.socket_broker import ORDERS, ScriptedBroker

THREADS, TURNS = 4, 25


def test_threads_take_turns_on_one_connection() -> None:
    with onceflow.Broker(topics={"orders": 1}) as broker:
        settings = ProducerSettings.of(bootstrap_servers=broker.bootstrap)
        cluster = BlockingCluster(settings.bootstrap_servers, settings, RealClock(), RealRand())
        together = threading.Barrier(THREADS + 1)

        def ask() -> int:
            together.wait()
            for _ in range(TURNS):
                ask_once(cluster)
            return cluster.partition_count("orders")

        with ThreadPoolExecutor(THREADS) as pool:
            asked = [pool.submit(ask) for _ in range(THREADS)]
            together.wait()
            ask_once(cluster)
            assert [each.result() for each in asked] == [1] * THREADS
        assert len(cluster._connections) == 1
        cluster.close()


def ask_once(cluster: BlockingCluster) -> None:
    policy = ProducerSettings.of().retry
    cluster.trying(lambda deadline, _: cluster.refresh(["orders"], deadline), policy)


def test_a_child_does_not_wait_for_the_turn_of_a_thread_of_its_parent() -> None:
    with onceflow.Broker(topics={"orders": 1}) as broker:
        settings = ProducerSettings.of(bootstrap_servers=broker.bootstrap)
        cluster = BlockingCluster(settings.bootstrap_servers, settings, RealClock(), RealRand())
        ask_once(cluster)
        with cluster._turn:  # as another thread, at the moment of the fork
            child = os.fork()
            if not child:
                code = 1
                try:
                    signal.alarm(20)
                    ask_once(cluster)
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        cluster.close()


def test_a_partition_without_a_leader_is_looked_up_once_for_each_attempt() -> None:
    with ScriptedBroker() as broker:
        broker.leaderless.add(ORDERS)
        settings = ProducerSettings.of()
        cluster = BlockingCluster((broker.address,), settings, RealClock(), RealRand())
        deadline = RealClock().monotonic() + 20
        for asked in (1, 2, 3):
            with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
                cluster.leader(ORDERS, deadline)
            assert broker.asked.count(ApiKey.METADATA) == asked
        cluster.refresh({ORDERS.topic}, deadline)  # as a caller does between two attempts
        with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
            cluster.leader(ORDERS, deadline)
        assert broker.asked.count(ApiKey.METADATA) == 4
        cluster.close()
