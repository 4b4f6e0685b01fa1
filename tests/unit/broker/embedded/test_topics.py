"""An embedded broker with topics and a port of the caller's choice, and what it looks like."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from onceflow import Broker
from onceflow.blocking import Admin
from onceflow.broker.embedded.broker import BrokerNotStarted
from onceflow.errors import InvalidSetting


def counts(broker: Broker) -> dict[str, int]:
    with Admin(broker.bootstrap) as admin:
        return {each.name: len(each.partitions) for each in admin.list_topics()}


@pytest.mark.parametrize("process", [False, True])
def test_its_topics_are_there_when_it_has_started(process: bool) -> None:
    with Broker(topics={"orders": 3, "bills": 1}, process=process) as broker:
        assert counts(broker) == {"orders": 3, "bills": 1}
        broker.restart()
        assert counts(broker) == {"orders": 3, "bills": 1}


def test_topics_that_are_there_already(tmp_path: Path) -> None:
    for topics in ({"orders": 3}, {"orders": 3, "bills": 1}):
        with Broker(topics=topics, data_dir=tmp_path) as broker:
            assert counts(broker) == topics
    again = Broker(topics={"orders": 4}, data_dir=tmp_path)
    with pytest.raises(InvalidSetting, match="'orders' should have 4 partitions, but exists with"):
        again.start()
    assert "was stopped" in repr(again)


def test_topics_that_cannot_be() -> None:
    for wrong in ("orders", ["orders"], {"orders": "3"}, {"orders": True}, {1: 1}):
        given: Any = wrong
        with pytest.raises(InvalidSetting, match="pass names with their numbers of partitions"):
            Broker(topics=given)
    for count in (0, -1):
        told = f"topics gives 'orders' {count} partitions; a topic has 1 or more"
        with pytest.raises(InvalidSetting, match=told):
            Broker(topics={"bills": 1, "orders": count})
    with pytest.raises(BrokerNotStarted, match="could not create its topics: topic 'or ders'"):
        Broker(topics={"or ders": 1}).start()


def test_a_port_of_its_own() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Broker(port=port) as broker:
        assert broker.bootstrap == f"127.0.0.1:{port}"
    for wrong in ("9092", -1, 65_536, 1.0, True):
        given: Any = wrong
        with pytest.raises(InvalidSetting, match="pass a whole number from 0 to 65535"):
            Broker(port=given)
    with pytest.raises(InvalidSetting, match="port and listen are both given"):
        Broker(port=port, listen="127.0.0.1:1")


def test_what_it_looks_like() -> None:
    broker = Broker()
    assert repr(broker) == "<Broker in a thread, was not started>"
    with broker:
        where = f"at {broker.bootstrap}, data in {broker.data_dir}"
        assert repr(broker) == f"<Broker in a thread {where}, is running>"
    assert repr(broker).endswith(", was stopped>")
    assert repr(Broker(process=True)) == "<Broker in a process, was not started>"
