"""The look-ahead of the blocking reader, and the source's tasks that read several spans with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import onceflow
from onceflow.blocking import Admin, Producer
from onceflow.client import OffsetOutOfRange, ReaderSettings
from onceflow.client.worker.connection import BlockingConnection
from onceflow.client.worker.reader import BlockingReader, Range
from onceflow.runtime import RealClock
from onceflow.spark.connection_cache import ConnectionCache
from onceflow.spark.errors import DataLost, TopicRecreated
from onceflow.spark.source import task as reading
from onceflow.spark.source.offsets import OffsetSpan
from onceflow.spark.source.task import ReadTask
from onceflow.types import TopicPartition
from onceflow.wire import ApiKey

PLACES = [TopicPartition("orders", number) for number in range(3)]
ROWS = 4


@pytest.fixture(scope="module")
def settings() -> Iterator[ReaderSettings]:
    """Of a broker with a few orders in each of three partitions."""
    with onceflow.Broker() as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("orders", partitions=len(PLACES))
        with Producer(broker.bootstrap) as producer:
            for place in PLACES:
                for at in range(ROWS):
                    value = b"%d-%d" % (place.partition, at)
                    producer.send("orders", value, partition=place.partition)
        yield ReaderSettings.of({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[ApiKey]:
    """What is asked of brokers from now on."""
    found: list[ApiKey] = []
    send = BlockingConnection.send

    def noted(self: BlockingConnection, key: ApiKey, *given: Any) -> None:
        found.append(key)
        send(self, key, *given)

    monkeypatch.setattr(BlockingConnection, "send", noted)
    return found


def of(place: TopicPartition, start: int = 0, end: int = ROWS) -> Range:
    return Range(*place, start, end)


def values(batches: Iterator[Any]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def told(number: int) -> list[bytes]:
    return [b"%d-%d" % (number, at) for at in range(ROWS)]


def test_the_next_range_is_asked_for_before_this_one_is_handed_out(
    settings: ReaderSettings, sent: list[ApiKey]
) -> None:
    with BlockingReader(settings) as reader:
        first = reader.read(*of(PLACES[0]), then=of(PLACES[1]))
        next(first)
        assert sent.count(ApiKey.FETCH) == 2
        assert not list(first)
        assert values(reader.read(*of(PLACES[1]))) == told(1)
        assert sent.count(ApiKey.FETCH) == 2


def test_another_range_than_the_one_that_was_named_is_read_all_the_same(
    settings: ReaderSettings,
) -> None:
    with BlockingReader(settings) as reader:
        assert values(reader.read(*of(PLACES[0]), then=of(PLACES[1]))) == told(0)
        assert values(reader.read(*of(PLACES[2]))) == told(2)
        assert values(reader.read(*of(PLACES[1], 1, 3))) == told(1)[1:3]


def test_who_stops_or_forgets_can_ask_whatever_they_like(settings: ReaderSettings) -> None:
    with BlockingReader(settings) as reader:
        left: Any = reader.read(*of(PLACES[0]), then=of(PLACES[1]))
        next(left)
        left.close()
        assert reader.ends(*PLACES[1]) == (0, ROWS)
        assert values(reader.read(*of(PLACES[0]), then=of(PLACES[1]))) == told(0)
        reader.forget_ahead()
        assert reader.topic_ids(PLACES).keys() == {*PLACES}


def test_a_range_that_was_asked_for_ahead_and_is_not_there_is_an_error_when_it_is_read(
    settings: ReaderSettings,
) -> None:
    gone = of(PLACES[1], 100, 104)
    with BlockingReader(settings) as reader:
        assert values(reader.read(*of(PLACES[0]), then=gone)) == told(0)
        with pytest.raises(OffsetOutOfRange):
            list(reader.read(*gone))
        assert values(reader.read(*of(PLACES[1]))) == told(1)


def test_time_that_is_spent_with_records_is_not_taken_for_that_of_the_broker(
    settings: ReaderSettings,
) -> None:
    class Late(RealClock):
        late_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.late_s

    clock = Late()
    with BlockingReader(settings, clock=clock) as reader:
        first = reader.read(*of(PLACES[0]), then=of(PLACES[1]))
        next(first)
        clock.late_s = 3600.0
        assert not list(first)
        assert values(reader.read(*of(PLACES[1]))) == told(1)


# --- a task -------------------------------------------------------------------------------------


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = ConnectionCache(BlockingReader)
    monkeypatch.setattr(reading, "READERS", kept)
    yield
    kept.close()


def spans_of(settings: ReaderSettings) -> list[OffsetSpan]:
    with BlockingReader(settings) as reader:
        ids = reader.topic_ids(PLACES)
    return [OffsetSpan(*place, 0, ROWS, ids[place]) for place in PLACES]


@pytest.mark.usefixtures("readers")
def test_a_task_asks_once_whether_topics_are_still_the_same(
    settings: ReaderSettings, sent: list[ApiKey]
) -> None:
    task, spans = ReadTask(settings, ("value",), True), spans_of(settings)
    for _ in range(2):
        sent.clear()
        assert values(task.read(spans)) == [*told(0), *told(1), *told(2)]
    assert sent == [*[ApiKey.FETCH] * len(spans), ApiKey.METADATA]


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize(("is_loss_an_error", "error"), [(True, DataLost), (False, TopicRecreated)])
def test_a_topic_that_was_recreated_while_a_task_read_it_is_found(
    settings: ReaderSettings,
    monkeypatch: pytest.MonkeyPatch,
    is_loss_an_error: bool,
    error: type[Exception],
) -> None:
    """Behind the last span, also when it is the topic of the first."""

    def recreated(self: BlockingReader, places: Any) -> dict[TopicPartition, str | None]:
        return {place: "another" if place == PLACES[0] else None for place in places}

    spans = spans_of(settings)
    monkeypatch.setattr(BlockingReader, "topic_ids", recreated)
    with pytest.raises(error, match="'orders' was deleted and recreated"):
        list(ReadTask(settings, ("value",), is_loss_an_error).read(spans))
