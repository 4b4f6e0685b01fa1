"""The blocking session: the same loop as the async one, on a thread that keeps the member alive."""

from __future__ import annotations

import itertools
import threading

import pytest

from onceflow import blocking
from onceflow.blocking.loop import NotRunning
from onceflow.types import TopicPartition

NUMBERS = itertools.count()


@pytest.fixture
def name(bootstrap: str) -> str:
    """Of topics that are there: the input has ten records."""
    made = f"topic-{next(NUMBERS)}"
    with blocking.Admin(bootstrap) as admin:
        for topic in (made, f"{made}-out", f"{made}-dead"):
            admin.create_topic(topic, partitions=1)
    with blocking.Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(made, b"%d" % number)
    return made


def session(bootstrap: str, name: str, **settings: object) -> blocking.Session:
    return blocking.Session(
        bootstrap,
        {"group.id": f"{name}-group", "topics": name, "max.poll.records": 4},
        dead_letter_topic=f"{name}-dead",
        **settings,
    )


def written(bootstrap: str, topic: str) -> list[bytes | None]:
    with blocking.Consumer(bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([topic])
        found: list[bytes | None] = []
        while records := reader.poll(1.0):
            found += [record.value for record in records]
    return found


def test_everything_is_copied_once(bootstrap: str, name: str) -> None:
    sizes = []
    with session(bootstrap, name, instance="one") as copying:
        assert copying.transactional_id == f"{name}-group/one"
        for batch, txn in copying:
            sizes.append(len(batch))
            receipts = [txn.send(f"{name}-out", record.value) for record in batch]
            assert all(receipt.result(10).offset >= 0 for receipt in receipts)
            if sum(sizes) == 10:
                txn.dead_letter(next(iter(batch)), ValueError("the last"))
                assert copying.assignment == {TopicPartition(name, 0)}
                assert not copying.lag()[TopicPartition(name, 0)].records
                break
    assert sizes == [4, 4, 2]
    assert written(bootstrap, f"{name}-out") == [b"%d" % number for number in range(10)]
    assert written(bootstrap, f"{name}-dead") == [b"8"]


def fail_at_the_second_batch(bootstrap: str, name: str) -> None:
    with session(bootstrap, name) as copying:
        for number, (batch, txn) in enumerate(copying):
            txn.send_table(f"{name}-out", batch.table().select(["value"]))
            if number:
                raise KeyError


def test_an_exception_aborts(bootstrap: str, name: str) -> None:
    with pytest.raises(KeyError):
        fail_at_the_second_batch(bootstrap, name)
    assert written(bootstrap, f"{name}-out") == [b"%d" % number for number in range(4)]


def test_another_thread_stops_it(bootstrap: str, name: str) -> None:
    seen = 0
    with session(bootstrap, name) as copying:
        for batch, _ in copying:
            seen += len(batch)
            if seen == 10:  # then it waits for more
                threading.Timer(0.1, copying.stop).start()
    assert seen == 10
    with pytest.raises(NotRunning):
        copying.stop()


def test_what_both_of_its_clients_have_counted(bootstrap: str, name: str) -> None:
    with session(bootstrap, name) as counted:
        batch, transaction = next(counted)
        for record in batch:
            transaction.send(f"{name}-out", record.value)
        next(counted)
        found = counted.metrics()
        assert found["consumer"]["records-consumed-total"] == 8.0
        assert found["producer"]["record-send-total"] == 4.0
        assert counted.measured.consumer.snapshot().keys() == found["consumer"].keys()
