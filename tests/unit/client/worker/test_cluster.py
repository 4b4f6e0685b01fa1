"""A blocking cluster that threads share, as the driver of a Spark query and those who answer its
tasks do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import onceflow
from onceflow.client.settings.clients import ProducerSettings
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.runtime.clock import RealClock
from onceflow.runtime.rand import RealRand
from onceflow.types import TopicPartition

THREADS, TURNS = 4, 25


def test_threads_take_turns_on_one_connection() -> None:
    with onceflow.Broker(topics={"orders": 1}) as broker:
        settings = ProducerSettings.of(
            bootstrap_servers=broker.bootstrap, transactional_id="shared"
        )
        cluster = BlockingCluster(settings.bootstrap_servers, settings, RealClock(), RealRand())
        together = threading.Barrier(THREADS + 1)

        def ask() -> int:
            together.wait()
            for _ in range(TURNS):
                cluster.trying(
                    lambda deadline, _: cluster.refresh(["orders"], deadline), settings.retry
                )
            return cluster.partition_count("orders")

        with ThreadPoolExecutor(THREADS) as pool:
            asked = [pool.submit(ask) for _ in range(THREADS)]
            with TransactionClient(settings, cluster=cluster) as client:
                together.wait()
                for _ in range(TURNS):
                    client.init()
                    client.begin([TopicPartition("orders", 0)])
                    client.abort()
            assert [each.result() for each in asked] == [1] * THREADS
        (connection,) = cluster._connections.values()
        assert connection.is_open, "it was lent"
        cluster.close()
        assert not connection.is_open
