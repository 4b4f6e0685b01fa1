"""Partitions that come and go and records that are gone, on a cluster that is played; and what a
batch reads of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

import pytest

from onceflow.client.errors.consumer import RangeUnavailable
from onceflow.client.errors.requests import ConnectionLost, NoSuchPartition, TopicNotFound
from onceflow.client.types import TopicMetadata
from onceflow.spark.errors.source import DataLost, InvalidOptions, TopicsUnsettled
from onceflow.spark.source.batch import batch_tasks
from onceflow.spark.source.cluster import SourceCluster
from onceflow.spark.source.offsets import Offsets, OffsetSpan
from onceflow.spark.source.option_values import Assign, Selection, Subscribe
from onceflow.spark.source.options import SourceOptions
from onceflow.spark.source.stream import ALL, Admission, StreamOffsets
from onceflow.types import TopicPartition
from tests.unit.spark.source.scripted_cluster import (
    A0,
    A1,
    EARLY,
    PlayedCluster,
    cluster,
    entry,
    logged,
    options,
    stream,
)

# --- partitions that come and go ----------------------------------------------------------------


def test_new_partitions_are_read_from_their_beginning() -> None:
    logs = cluster((0, 10))
    reading = stream(logs)
    first = reading.latest(reading.initial, ALL)
    logs.first[A1], logs.last[A1] = 0, 4
    logs.now += 1.0
    second = reading.latest(first, ALL)
    assert second == entry({"0": 10, "1": 0}, {"0": 10, "1": 4})
    assert reading.tasks(first, second) == [(OffsetSpan("a", 1, 0, 4),)]


def test_partitions_are_not_looked_for_all_the_time() -> None:
    logs = cluster((0, 10))
    reading = stream(logs, **EARLY)
    first = reading.latest(reading.initial, ALL)
    for _ in range(5):
        reading.latest(first, ALL)
    assert logs.looked == 1


LOST = [
    pytest.param(
        {"first": {A0: 15}}, r"a-0 .* from offset 10 up to 20, and begins at 15", id="deleted"
    ),
    pytest.param({"last": {A0: 4}}, r"a-0 .* from offset 10 on, and ends at 4", id="cut"),
    pytest.param({"last": None}, r"a-0 .* from offset 10 on, and is not there any more", id="gone"),
]
AFTER = {"deleted": ({"0": 15}, {"0": 20}), "cut": ({"0": 4}, {"0": 4}), "gone": ({}, {})}


def lose(logs: PlayedCluster, change: Mapping[str, dict[TopicPartition, int] | None]) -> None:
    logs.last[A0] = 20
    for name, offsets in change.items():
        if offsets is None:
            del logs.last[A0], logs.first[A0]
        else:
            setattr(logs, name, offsets)


@pytest.mark.parametrize(("change", "told"), LOST)
def test_records_that_are_gone_are_an_error(change: Any, told: str) -> None:
    logs = cluster((0, 10))
    reading = stream(logs, **EARLY)
    first = reading.latest(reading.initial, ALL)
    lose(logs, change)
    with pytest.raises(DataLost, match=f"{told}.*failOnDataLoss"):
        reading.latest(first, ALL)


@pytest.mark.parametrize(("change", "told"), LOST)
def test_records_that_are_gone_are_skipped_with_a_warning_when_that_is_wanted(
    change: Any, told: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    logs = cluster((0, 10))
    reading = stream(logs, failOnDataLoss="false", **EARLY)
    first = reading.latest(reading.initial, ALL)
    lose(logs, change)
    with caplog.at_level(logging.WARNING, "onceflow.spark"):
        second = reading.latest(first, ALL)
        reading.tasks(first, second)
        assert reading.latest(second, ALL) == second
    (warning,) = caplog.messages
    assert "skipped, because failOnDataLoss is false" in warning
    kind = request.node.callspec.id
    assert second == entry(*AFTER[kind])


class GoesBetween(PlayedCluster):
    """Partition 0 is there when its end is asked for, and not any more afterwards."""

    def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
        found = super().latest(partitions)
        self.last.pop(A0, None)
        self.first.pop(A0, None)
        return found


def goes_between(logs: PlayedCluster) -> None:
    logs.last = {A0: 20, A1: 20}
    logs.__class__ = GoesBetween


def goes_later(logs: PlayedCluster) -> None:
    del logs.last[A0], logs.first[A0]


@pytest.mark.parametrize(
    ("ends_where_it_ends_now", "go"),
    [(False, goes_between), (True, goes_later)],
    ids=["between two questions", "after the end was fixed"],
)
def test_a_partition_may_go_at_any_moment(
    ends_where_it_ends_now: bool,
    go: Callable[[PlayedCluster], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def begun(**more: str) -> tuple[PlayedCluster, StreamOffsets, Any]:
        logs = cluster((0, 10), (0, 10))
        reading = stream(logs, **EARLY, **more)
        if ends_where_it_ends_now:
            reading.take_available()
        return logs, reading, reading.latest(reading.initial, Admission(most=4))

    logs, careful, first = begun()
    go(logs)
    with pytest.raises(DataLost, match=r"a-0 .* and is not there any more"):
        careful.latest(first, ALL)

    logs, careless, first = begun(failOnDataLoss="false")
    go(logs)
    with caplog.at_level(logging.WARNING, "onceflow.spark"):
        second = careless.latest(first, ALL)
    (warning,) = caplog.messages
    assert "a-0 was to be read" in warning
    end = 10 if ends_where_it_ends_now else 20
    assert careless.tasks(first, second) == [(OffsetSpan("a", 1, 2, end),)]


def test_a_batch_that_is_run_again_after_its_records_were_deleted_is_an_error() -> None:
    logs = cluster((0, 10))
    reading = stream(logs, **EARLY)
    end = reading.latest(reading.initial, ALL)
    logs.first[A0] = 5
    with pytest.raises(DataLost, match="from offset 0 up to 10, and begins at 5"):
        stream(logs, **EARLY).tasks(reading.initial, end)
    left = stream(logs, failOnDataLoss="false", **EARLY).tasks(reading.initial, end)
    assert left == [(OffsetSpan("a", 0, 5, 10),)]


def test_a_batch_that_was_planned_beyond_the_end_of_its_log() -> None:
    """The log was cut before the batch was run again."""
    logs = cluster((0, 20))
    planned = stream(logs, **EARLY).latest({}, ALL)
    logs.last[A0] = 12
    reading = stream(logs, **EARLY)
    lost = r"from offset 0 up to 20, and ends at 12.* written there up to offset 20 is not read"
    with pytest.raises(DataLost, match=lost):
        reading.tasks({}, planned)
    going_on = stream(logs, **EARLY, failOnDataLoss="false")
    assert going_on.tasks({}, planned) == [(OffsetSpan("a", 0, 0, 12),)]
    logs.last[A0] = 15
    after = going_on.latest(planned, ALL)
    assert going_on.tasks(planned, after) == []
    assert after == entry({"0": 15}, {"0": 15})


# --- topics that are made again -----------------------------------------------------------------


def recreated(logs: PlayedCluster, last: int) -> None:
    logs.ids = {"a": "another"}
    logs.first[A0], logs.last[A0] = 0, last
    logs.now += 1.0


@pytest.mark.parametrize("last", [4, 10, 30])
def test_a_topic_that_is_made_again_is_another_one(last: int) -> None:
    """However far it is filled."""
    logs = cluster((0, 10))
    logs.ids = {"a": "one"}
    reading = stream(logs, **EARLY)
    first = reading.latest({}, ALL)
    assert first == {**entry({"0": 0}, {"0": 10}), "ids": {"a": "one"}}
    recreated(logs, last)
    for again in (reading, stream(logs, **EARLY)):
        with pytest.raises(DataLost, match="topic 'a' was deleted and recreated"):
            again.latest(first, ALL)
    going_on = stream(logs, **EARLY, failOnDataLoss="false")
    second = going_on.latest(first, ALL)
    assert second == {**entry({"0": 0}, {"0": last}), "ids": {"a": "another"}}
    assert going_on.tasks(first, second) == [(OffsetSpan("a", 0, 0, last, "another"),)]
    assert going_on.latest(second, ALL) == second


def test_a_batch_of_a_topic_that_is_made_again_is_gone() -> None:
    logs = cluster((0, 10))
    logs.ids = {"a": "one"}
    planned = stream(logs, **EARLY).latest({}, ALL)
    recreated(logs, 30)
    with pytest.raises(DataLost, match="topic 'a' was deleted and recreated"):
        stream(logs, **EARLY).tasks({}, planned)
    going_on = stream(logs, **EARLY, failOnDataLoss="false")
    assert going_on.tasks({}, planned) == []
    after = going_on.latest(planned, ALL)
    assert going_on.tasks(planned, after) == [(OffsetSpan("a", 0, 0, 30, "another"),)]


class Snapshots(PlayedCluster):
    """Ids are those of the last question for partitions, as they really are."""

    real: dict[str, str]
    stale: list[dict[str, str]]
    """What the next questions are answered by brokers that have not heard of a change."""
    is_gone: bool

    def _ids_now(self) -> Mapping[str, str]:
        return self.stale.pop(0) if self.stale else self.real

    def partitions(
        self, selection: Selection, known: Collection[TopicPartition] = ()
    ) -> set[TopicPartition]:
        self.ids = dict(self._ids_now())
        found = super().partitions(selection, known)
        if not self.is_gone:
            return found
        if not any(place.topic == "a" for place in known):
            raise TopicNotFound("a")
        return set()


def snapshots(end: int = 10) -> Snapshots:
    logs = Snapshots({A0: 0}, {A0: end})
    logs.real, logs.stale, logs.is_gone = {"a": "one"}, [], False
    return logs


def test_a_broker_that_has_not_heard_of_a_change_is_not_believed() -> None:
    logs = snapshots()
    logs.real = {"a": "two"}
    reading = stream(logs, **EARLY)
    first = reading.latest({}, ALL)
    logs.now, logs.last[A0], logs.stale = logs.now + 2.0, 12, [{"a": "one"}]
    second = reading.latest(first, ALL)
    assert second == {**entry({"0": 10}, {"0": 12}), "ids": {"a": "two"}}


@pytest.mark.parametrize("is_run_again", [False, True])
def test_a_broker_that_is_cut_off_is_not_believed_against_another(is_run_again: bool) -> None:
    """For as long as that lasts; and the id that it says is not kept."""
    logs = cluster((0, 10))
    logs.ids = {"a": "two"}
    first = logged(stream(logs, **EARLY).latest({}, ALL))
    logs.ids, logs.others = {"a": "one"}, [{"a": "two"}]
    reading = stream(logs, **EARLY)
    if is_run_again:
        assert reading.tasks({}, first) == [(OffsetSpan("a", 0, 0, 10, "two"),)]
    assert reading.latest(first, ALL) == first
    logs.now, logs.last[A0] = logs.now + 2.0, 12
    second = reading.latest(first, ALL)
    assert second == {**entry({"0": 10}, {"0": 12}), "ids": {"a": "two"}}
    logs.ids, logs.others = {"a": "three"}, [{"a": "three"}, {}]
    with pytest.raises(DataLost, match="recreated"):
        stream(logs, **EARLY).latest(second, ALL)


class Brokers:
    """Each says what it knows; the last one cannot be reached."""

    def __init__(self, *ids: int) -> None:
        self._ids = ids
        self.node_ids = [*range(len(ids) + (len(ids) > 1))]

    async def metadata_of(self, node_id: int, names: Collection[str]) -> list[TopicMetadata]:
        if node_id == len(self._ids):
            raise ConnectionLost("it is gone", outcome="not applied")
        return [TopicMetadata(name, UUID(int=self._ids[node_id]), False, ()) for name in names]

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(("ids", "said"), [((1,), []), ((1, 2), [1, 2])])
def test_all_brokers_that_can_be_reached_are_asked(ids: tuple[int, ...], said: list[int]) -> None:
    asking = SourceCluster(options().settings)
    brokers: Any = Brokers(*ids)
    asking._cluster = brokers
    assert asking.ids_of_brokers({"a"}) == [{"a": str(UUID(int=each))} for each in said]
    asking.close()


def test_brokers_that_never_agree_end_a_query_with_a_text() -> None:
    logs = snapshots(100)
    first = stream(logs, **EARLY).latest({}, ALL)
    logs.last[A0] = 5
    logs.__class__ = Disagreeing
    reading = stream(logs, **EARLY, failOnDataLoss="false")
    with pytest.raises(TopicsUnsettled, match=r"the id of topic a changed .* 4 times"):
        reading.latest(first, ALL)


class Disagreeing(Snapshots):
    """Whoever is asked for ids alone says another one."""

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {"a": "two"}


def test_what_a_run_takes_that_ends_is_looked_up_again_in_a_topic_that_was_recreated() -> None:
    class Remade(Snapshots):
        def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
            self.real, self.last[A0] = {"a": "two"}, 5
            return super().topic_ids(topics)

    logs = snapshots(100)
    logs.__class__ = Remade
    reading = stream(logs, **EARLY)
    reading.take_available()
    assert reading.latest({}, ALL) == {**entry({"0": 0}, {"0": 5}), "ids": {"a": "two"}}


class Strict(PlayedCluster):
    """Names what is selected and neither there nor known, as a real one does."""

    def partitions(
        self, selection: Selection, known: Collection[TopicPartition] = ()
    ) -> set[TopicPartition]:
        if isinstance(selection, Assign):
            for place in selection.partitions - {*self.last} - {*known}:
                raise NoSuchPartition(f"partition {place} is assigned, but does not exist")
        if isinstance(selection, Subscribe):
            for topic in {*selection.topics} - {place.topic for place in (*self.last, *known)}:
                raise TopicNotFound(topic)
        return set(self.last)


@pytest.mark.parametrize("chosen", [{"assign": '{"a":[0],"b":[0]}'}, {"subscribe": "a,b"}])
def test_a_batch_of_an_earlier_run_when_one_topic_is_gone_and_one_made_again(
    chosen: dict[str, str],
) -> None:
    places = A0, TopicPartition("b", 0)
    logs = Strict(dict.fromkeys(places, 0), dict.fromkeys(places, 10), ids={"a": "1", "b": "2"})
    made = SourceOptions.of(
        {"bootstrap.servers": "x:1", "failOnDataLoss": "false", **EARLY, **chosen}
    )
    planned = logged(StreamOffsets(made, logs, logs).latest({}, ALL))
    del logs.first[A0], logs.last[A0]
    logs.last[places[1]], logs.ids = 5, {"b": "3"}
    assert StreamOffsets(made, logs, logs).tasks({}, planned) == []


def test_a_change_is_waited_for_once() -> None:
    """Also where there is not enough to be read yet, and the same is asked for again and again."""
    logs = snapshots()
    reading, enough = stream(logs, **EARLY, failOnDataLoss="false"), Admission(least=100)
    first = reading.latest({}, enough)
    logs.now, logs.real, logs.last[A0] = logs.now + 2.0, {"a": "two"}, 5
    assert reading.latest(first, enough) == first
    waited = logs.now
    for _ in range(5):
        assert reading.latest(first, enough) == first
    assert logs.now - waited < 3


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_is_made_again_while_the_first_batch_is_planned(fail: str) -> None:
    class Remade(Snapshots):
        def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
            if self.real == {"a": "one"}:
                self.real, self.last[A0] = {"a": "two"}, 4
            return super().latest(partitions)

    logs = snapshots()
    logs.__class__ = Remade
    reading = stream(logs, **EARLY, failOnDataLoss=fail)
    first = reading.latest({}, ALL)
    assert first == {**entry({"0": 0}, {"0": 4}), "ids": {"a": "two"}}
    logs.now, logs.last[A0] = logs.now + 2.0, 6
    second = reading.latest(first, ALL)
    assert reading.tasks(first, second) == [(OffsetSpan("a", 0, 4, 6, "two"),)]


def test_a_topic_that_is_made_again_and_deleted_again_is_no_error_where_loss_is_none() -> None:
    class GoneAgain(Snapshots):
        def latest(self, partitions: Collection[TopicPartition]) -> Offsets:
            self.is_gone = True
            return super().latest(partitions)

    logs = snapshots()
    reading = stream(logs, **EARLY, failOnDataLoss="false")
    first = reading.latest({}, ALL)
    logs.__class__ = GoneAgain
    logs.now, logs.real, logs.last[A0] = logs.now + 2.0, {"a": "two"}, 5
    second = reading.latest(first, ALL)
    logs.now += 2.0
    assert reading.tasks(first, reading.latest(second, ALL)) == []


def test_only_topics_with_something_new_are_looked_at_again() -> None:
    asked: list[set[str]] = []

    class Counted(Snapshots):
        def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
            asked.append(set(topics))
            return super().topic_ids(topics)

    logs = snapshots()
    logs.__class__ = Counted
    b0 = TopicPartition("b", 0)
    logs.first[b0], logs.last[b0], logs.real = 0, 7, {"a": "one", "b": "other"}
    reading = stream(logs, **EARLY)
    first = reading.latest({}, ALL)
    logs.last[b0] = 8
    second = reading.latest(first, ALL)
    assert reading.latest(second, ALL) == second
    assert asked == [{"a", "b"}, {"b"}]
    assert logs.looked == 1


def test_a_checkpoint_without_ids_gets_them_with_its_next_batch() -> None:
    logs = cluster((0, 10))
    first = stream(logs, **EARLY).latest({}, ALL)
    logs.ids = {"a": "one"}
    reading = stream(logs, **EARLY)
    assert reading.latest(first, ALL) == first
    logs.last[A0] = 11
    assert reading.latest(first, ALL)["ids"] == {"a": "one"}


def test_an_end_behind_an_open_transaction_is_no_loss() -> None:
    logs = cluster((0, 10))
    reading = stream(logs, startingOffsets='{"a":{"0":14}}')
    logs.log_end[A0] = 16
    first = reading.latest(reading.initial, ALL)
    assert first == entry({"0": 14}, {"0": 14})
    assert reading.latest(first, ALL) == first
    logs.last[A0] = 16
    assert reading.latest(first, ALL) == entry({"0": 14}, {"0": 16})


def test_an_end_that_is_old_is_asked_for_again() -> None:
    logs = cluster((0, 10))
    reading = stream(logs, **EARLY, **{"fetchOffset.retryIntervalMs": "7"})
    first = reading.latest(reading.initial, ALL)
    logs.last[A0], logs.comes = 8, {A0: 12}
    assert reading.latest(first, ALL) == entry({"0": 10}, {"0": 12})
    assert logs.waits == [0.007]


def test_a_new_partition_that_has_lost_its_first_records_is_data_loss() -> None:
    logs = cluster((0, 10))
    reading = stream(logs, **EARLY)
    first = reading.latest(reading.initial, ALL)
    logs.first[A1], logs.last[A1] = 3, 4
    logs.now += 1.0
    with pytest.raises(DataLost, match="a-1 is new to this query and begins at offset 3"):
        reading.latest(first, ALL)


@pytest.mark.parametrize("offset", [2, 11])
def test_a_start_that_no_log_holds_is_data_loss(offset: int) -> None:
    logs = cluster((3, 10))
    given = {"startingOffsets": f'{{"a":{{"0":{offset}}}}}'}
    reading = stream(logs, **given)
    with pytest.raises(
        DataLost, match=f"offset {offset} on, and holds the offsets from 3 up to 10"
    ):
        reading.latest(reading.initial, ALL)
    skipping = stream(logs, failOnDataLoss="false", **given)
    begin = 3 if offset == 2 else 10
    assert skipping.latest(skipping.initial, ALL) == entry({"0": begin}, {"0": 10})


# --- batches ------------------------------------------------------------------------------------


def test_tasks_of_a_batch_know_the_ids_of_topics() -> None:
    logs = cluster((0, 10))
    logs.ids = {"a": "one"}
    assert tasks(logs) == [(OffsetSpan("a", 0, 0, 10, "one"),)]


def tasks(logs: PlayedCluster, **more: str) -> list[tuple[OffsetSpan, ...]]:
    return batch_tasks(options(**more), logs, logs)


def test_a_batch_reads_all_or_what_it_is_told() -> None:
    logs = cluster((3, 10), (0, 20), (5, 5))
    assert tasks(logs) == [(OffsetSpan("a", 0, 3, 10),), (OffsetSpan("a", 1, 0, 20),)]
    by_time = tasks(
        logs,
        startingTimestamp="4",
        endingTimestamp="8",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert by_time == [(OffsetSpan("a", 0, 4, 8),), (OffsetSpan("a", 1, 4, 8),)]


def test_an_end_that_is_not_there_is_waited_for_and_not_for_ever() -> None:
    logs = cluster((0, 10))
    more = {"endingOffsets": '{"a":{"0":15}}', "kafka.default.api.timeout.ms": "1000"}
    logs.comes = {A0: 15}
    assert tasks(logs, **more) == [(OffsetSpan("a", 0, 0, 15),)]
    logs = cluster((0, 10))
    logs.log_end[A0] = 30
    with pytest.raises(
        RangeUnavailable,
        match=r"within 1 s .* up to offset 15, committed data ends at 10, the log at 30",
    ):
        tasks(logs, **more)
    assert len(logs.waits) in (10, 11)  # of a tenth each


def test_a_batch_that_begins_behind_its_end_is_refused() -> None:
    logs = cluster((0, 10))
    with pytest.raises(InvalidOptions, match="a-0: the start, offset 9, is behind the end, 4"):
        tasks(logs, startingOffsets='{"a":{"0":9}}', endingTimestamp="4")


@pytest.mark.parametrize("end", [None, "latest", '{"a":{"0":-1}}'])
def test_a_batch_that_begins_behind_an_open_transaction_has_nothing_to_read(
    end: str | None,
) -> None:
    """As a stream has; however it is said that it ends at the latest offset."""
    logs = cluster((0, 10))
    logs.log_end[A0] = 20
    more = {"startingOffsets": '{"a":{"0":15}}'}
    assert tasks(logs, **more, **({} if end is None else {"endingOffsets": end})) == []
    reading = stream(logs, **more)
    first = reading.latest({}, ALL)
    assert first == entry({"0": 15}, {"0": 15})
    logs.last[A0] = 20
    assert reading.tasks(first, reading.latest(first, ALL)) == [(OffsetSpan("a", 0, 15, 20),)]
