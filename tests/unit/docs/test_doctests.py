"""The examples in the docstrings of what users call are whole, and do what they say.

Each has a broker of its own, at `bootstrap`, with the topics `orders` and `payments`; it imports
itself what its module does not, but for `asyncio`.
"""

from __future__ import annotations

import asyncio
import doctest
import sys
from types import ModuleType

import pytest

import onceflow
from onceflow import blocking
from onceflow.blocking import Admin
from onceflow.client import prepared, prometheus
from onceflow.client.admin import admin
from onceflow.client.consumer import consumer, fetcher
from onceflow.client.net import cluster
from onceflow.client.producer import producer, receipts, transaction
from onceflow.client.session import session
from onceflow.client.transactions import handoff as transfer
from onceflow.client.worker import reader as worker_reader, writer as worker

VALUES = {"JsonFormatter", "OffsetToCommit", "Record", "TopicPartition"}
"""Shown in use by the examples of others."""


def made_by_users(package: ModuleType) -> list[type]:
    """The public classes of a package that a program works with, and not what it catches."""
    found = [getattr(package, name) for name in package.__all__ if name not in VALUES]
    return [
        each for each in found if isinstance(each, type) and not issubclass(each, BaseException)
    ]


PUBLIC: list[type] = [
    *made_by_users(onceflow),
    *made_by_users(blocking),
    admin.Admin,
    cluster.Cluster,
    consumer.Consumer,
    consumer.RebalanceListener,
    fetcher.Fetcher,
    prepared.PreparedTransaction,
    producer.Producer,
    prometheus.ClientCollector,
    receipts.Receipt,
    receipts.TableReceipt,
    session.Session,
    transaction.Transaction,
    transfer.OpenTransaction,
    worker.BlockingWriter,
    worker_reader.BlockingReader,
]


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@pytest.mark.parametrize("kind", PUBLIC, ids=full_name)
def test_an_example_does_what_it_says(kind: type, onceflow_broker: onceflow.Broker) -> None:
    with Admin(onceflow_broker.bootstrap) as made:
        for topic in ("orders", "payments"):
            made.create_topic(topic, partitions=1)
    names = {
        **vars(sys.modules[kind.__module__]),
        "asyncio": asyncio,
        "bootstrap": onceflow_broker.bootstrap,
    }
    example = doctest.DocTestParser().get_doctest(
        kind.__doc__ or "", names, full_name(kind), kind.__module__, 0
    )
    assert example.examples, f"{full_name(kind)} has no example"
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=told.append)
    assert not told, "".join(told)
