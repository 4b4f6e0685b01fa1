"""A data directory that another broker has: waited for while that one stops, else refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onceflow.blocking import Admin
from onceflow.broker.embedded.broker import Broker, BrokerNotStarted
from tests.interop.harness import eventually

BOTH = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
SECONDS = 30.0


@BOTH
def test_it_is_waited_for_while_the_other_one_stops(process: bool, tmp_path: Path) -> None:
    next_one = Broker(process=process, data_dir=tmp_path)
    with ThreadPoolExecutor(1) as pool:
        with Broker(data_dir=tmp_path) as first:
            with Admin(first.bootstrap) as admin:
                admin.create_topic("kept", partitions=1)
            started = pool.submit(next_one.start)
            eventually(lambda: next_one.log_text, lambda text: "waiting for up to" in text)
        started.result(SECONDS)
    with Admin(next_one.bootstrap) as admin:
        assert [topic.name for topic in admin.list_topics()] == ["kept"]
    next_one.stop()


@BOTH
def test_it_is_refused_when_the_other_one_goes_on(process: bool, tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path), pytest.raises(BrokerNotStarted, match="is in use by another"):
        Broker(process=process, data_dir=tmp_path).start()
    assert not [each for each in threading.enumerate() if each.name.startswith("onceflow")]
