"""A batch as one transaction, without Spark: tasks are calls, the broker is real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

import onceflow
from onceflow.client.admin.admin import Admin
from onceflow.client.errors.requests import BrokerError, ConnectionLost, TopicNotFound
from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.transactions import machine as txn_machine
from onceflow.client.transactions.handoff import OpenTransaction
from onceflow.client.worker.cluster import BlockingCluster
from onceflow.client.worker.reader import BlockingReader
from onceflow.client.worker.transaction_client import TransactionClient
from onceflow.runtime.clock import RealClock
from onceflow.runtime.rand import RealRand
from onceflow.spark.errors.sink import (
    BatchFailed,
    BatchTimedOut,
    CommitUnclear,
    LedgerConflict,
    RowRefused,
    SinkFenced,
    SinkRefused,
)
from onceflow.spark.sink import preflight as checks_cluster
from onceflow.spark.sink.api import write
from onceflow.spark.sink.batch import TRIES, JobFailed
from onceflow.spark.sink.claims import AttemptFailure
from onceflow.spark.sink.preflight import (
    BrokerLimits,
    check_spark,
    prepare_cluster,
    run_on_own_thread,
)
from onceflow.spark.sink.task_plan import Report
from onceflow.spark.sink.topics import SinkTopics
from onceflow.types import TopicPartition
from onceflow.wire.api import ApiKey
from onceflow.wire.error_codes import ErrorCode
from tests.interop.harness import eventually
from tests.unit.spark.sink.one_query import (
    OUT,
    SKIPPED,
    WEEK_MS,
    driver,
    options_of,
    settings_of,
    settled,
    visible,
)

HASTY = {"delivery_timeout_ms": 1200, "request_timeout_ms": 1000}


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with onceflow.Broker() as broker:
        yield broker.bootstrap


@pytest.fixture(params=[2, 1], ids=["TV2", "TV1"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The protocol of transactions that is spoken, whatever the broker has finalized."""
    found = int(request.param)
    monkeypatch.setattr(BlockingCluster, "transaction_version", lambda self, deadline: found)
    return found


def fail() -> None:
    raise ValueError("a task failed")


@contextmanager
def lost(monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> Iterator[None]:
    """No EndTxn is heard of, or only the answers are not."""
    perform = TransactionClient._perform

    def losing(self: TransactionClient, step: Any) -> Any:
        if step.request.api is not ApiKey.END_TXN:
            return perform(self, step)
        if answers:
            perform(self, step)
        return ConnectionLost("lost for a test")

    with monkeypatch.context() as patch:
        patch.setattr(TransactionClient, "_perform", losing)
        yield


def test_batches_one_after_the_other(
    bootstrap: str, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    with settled(bootstrap) as query:
        assert query.write(0, "a", "b") == 2
        assert query.write(1, "c") == 1
        assert len(set(query.epochs)) == 2, "each batch has an epoch of its own"
        assert query.writer.group_offsets([OUT], require_stable=True) == {OUT: 2}
    assert visible(bootstrap) == ["a", "b", "c"]
    with settled(bootstrap) as again:
        assert again.write(1, "c") == SKIPPED
        (line,) = caplog.messages
        assert line.startswith("batch 1 of 'totals' is skipped: it was committed before")
        assert line.endswith("producer id {}, epoch {}".format(*query.epochs[1]))
        with pytest.raises(LedgerConflict, match="other source offsets"):
            again.write(1, "c", digest="other")
        with pytest.raises(LedgerConflict, match="later batch"):
            again.write(0, "a")
        with pytest.raises(LedgerConflict, match="missing"):
            again.write(3, "e")
        assert again.write(2, "d") == 1
    assert visible(bootstrap) == ["a", "b", "c", "d"]


def test_a_run_keeps_its_connections_until_its_broker_goes_away() -> None:
    with onceflow.Broker() as broker:
        with settled(broker.bootstrap) as query:
            cluster = query.writer._client._cluster
            (first,) = cluster._connections.values()
            query.write(0, "a")
            assert [*cluster._connections.values()] == [first]
            broker.restart()
            query.write(1, "b")
            (second,) = cluster._connections.values()
            assert [first.is_open, second.is_open] == [False, True]
        assert [first.is_open, second.is_open] == [False, False]
        assert visible(broker.bootstrap) == ["a", "b"]


def test_the_ledger_is_read_when_nothing_is_open_any_more(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is still being done would not be seen otherwise."""
    seen: list[object] = []
    init, committed = TransactionClient.init, TransactionClient.committed_offsets

    def noted_init(self: TransactionClient) -> Any:
        found = init(self)
        seen.append("init")
        return found

    def noted_read(self: TransactionClient, *args: Any, require_stable: bool = True) -> Any:
        seen.append(require_stable)
        return committed(self, *args, require_stable=require_stable)

    monkeypatch.setattr(TransactionClient, "init", noted_init)
    monkeypatch.setattr(TransactionClient, "committed_offsets", noted_read)
    with driver(bootstrap) as query:
        query.writer.peek_ledger()
        query.writer.take_over()
    assert seen == [False, "init", False, True]


def test_a_failed_job_runs_again_in_a_new_epoch(
    bootstrap: str, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    with settled(bootstrap) as query:
        query.during = [fail]
        assert query.write(0, "a") == 1
        assert len(set(query.epochs)) == 2
        (line,) = caplog.messages
        assert line.startswith("batch 0 of 'totals' failed, its transaction (producer id ")
        assert f"epoch {query.epochs[0][1]}) is aborted, and it is written again" in line
        assert line.endswith("tries left: 2. What failed: JobFailed: ValueError: a task failed")
    assert visible(bootstrap) == ["a"]


def test_it_is_not_tried_for_ever(bootstrap: str) -> None:
    with settled(bootstrap) as query:
        query.during = [fail] * 10
        with pytest.raises(BatchFailed, match=f"after {TRIES} tries.*a task failed"):
            query.write(0, "a")
        assert len(query.epochs) == TRIES
    assert visible(bootstrap) == []


def test_what_cannot_be_helped_is_not_tried_again(bootstrap: str) -> None:
    with settled(bootstrap) as query:

        def refuse() -> None:
            query.book.add_failure(
                query.epochs[-1], AttemptFailure("row 7 is too large", is_final=True)
            )
            raise RowRefused("as text in a traceback")

        query.during = [refuse]
        with pytest.raises(BatchFailed, match="row 7 is too large"):
            query.write(0, "a")
        assert len(query.epochs) == 1
        assert query.write(0, "a") == 1
    assert visible(bootstrap) == ["a"]


def test_a_query_that_is_stopped_does_not_try_again(bootstrap: str, version: int) -> None:
    with settled(bootstrap) as query:

        def stop() -> None:
            query.is_wanted = False
            fail()

        query.during = [stop]
        with pytest.raises(JobFailed, match=r"not wanted any more.*a task failed"):
            query.write(0, "a")
        assert len(query.epochs) == 1
    # Nobody has to wait for the transaction that was open.
    with settled(bootstrap) as later:
        assert later.write(0, "b") == 1
    assert visible(bootstrap) == ["b"]


def test_tasks_that_report_nonsense(bootstrap: str) -> None:
    with settled(bootstrap) as query:
        run, reports = query.run, []

        def wrong(transaction: OpenTransaction, values: list[str]) -> list[Report]:
            found = run(transaction, values)
            reports.append(found)
            return found[:1] if len(reports) == 1 else found

        query.run = wrong  # type: ignore[method-assign]  # a task's report is lost
        assert query.write(0, "a") == 1
        assert len(reports) == 2
    assert visible(bootstrap) == ["a"]


def test_whoever_is_fenced_stops(bootstrap: str, version: int) -> None:
    with settled(bootstrap) as old, driver(bootstrap) as new:
        old.during = [new.writer.take_over]
        with pytest.raises(SinkFenced, match="Another driver writes as 'totals'"):
            old.write(0, "of the old one")
        assert new.write(0, "of the new one") == 1
        with pytest.raises((SinkFenced, BatchFailed)):
            old.write(1, "of the old one")
        assert new.write(1, "again") == 1
    assert visible(bootstrap) == ["of the new one", "again"]


def test_a_zombie_between_two_batches(bootstrap: str, version: int) -> None:
    """It had planned the next batch when another driver came, wrote that one, and went on."""
    with settled(bootstrap) as old, driver(bootstrap) as new:
        old.write(0, "a")
        new.writer.take_over()
        assert new.write(0, "a") == SKIPPED
        assert new.write(1, "b") == 1
        with pytest.raises(SinkFenced):
            old.write(1, "b")
        assert new.write(2, "c") == 1, "it was not disturbed"
    assert visible(bootstrap) == ["a", "b", "c"]


def test_another_query_is_seen_before_anybody_is_fenced(bootstrap: str) -> None:
    with settled(bootstrap) as mine, driver(bootstrap, query_id="other") as other:
        mine.write(0, "a")
        entry = other.writer.peek_ledger()
        assert entry is not None
        assert entry.query_id == "q"
        assert mine.write(1, "b") == 1, "it was not fenced"
        other.writer.take_over()
        with pytest.raises(LedgerConflict, match="another query"):
            other.write(0, "c")
        other.writer.adopt("other")
        assert other.write(0, "c") == 1
    assert visible(bootstrap) == ["a", "b", "c"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_commit_without_an_answer(
    answers: bool, bootstrap: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start knows by the ledger whether it was done."""
    with (
        settled(bootstrap, **HASTY) as query,
        lost(monkeypatch, answers=answers),
        pytest.raises(CommitUnclear, match="ledger says"),
    ):
        query.write(0, "a")
    with settled(bootstrap) as again:
        assert again.write(0, "a") == (SKIPPED if answers else 1)
    assert visible(bootstrap) == ["a"]


def test_a_transaction_that_times_out_is_written_again(bootstrap: str) -> None:
    with settled(bootstrap, transaction_timeout_ms=300) as query:

        def wait() -> None:
            settings = ReaderSettings.of(bootstrap_servers=bootstrap)
            with BlockingReader(settings) as reader:
                # The marker of the abort moves what readers of committed records see.
                start = reader.ends(*OUT)[1]
                eventually(lambda: reader.ends(*OUT)[1], lambda end: end != start)

        query.during = [wait]
        assert query.write(0, "a") == 1
        query.during = [wait, wait]
        with pytest.raises(BatchTimedOut, match="transaction_timeout_ms"):
            query.write(1, "b")
    assert visible(bootstrap) == ["a"]


def test_what_is_wrong_with_a_session() -> None:
    assert list(check_spark({})) == []
    assert list(check_spark({"spark.speculation": "false"})) == []
    (problem,) = check_spark({"spark.speculation": "True"})
    assert "set it to false" in problem
    connected = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(SinkRefused, match="Spark Connect"):
        write(connected, topic="out", bootstrap="127.0.0.1:1")


def test_what_brokers_say_or_do_not_say() -> None:
    told = BrokerLimits.of(
        {
            "transaction.max.timeout.ms": "900000",
            "offsets.retention.minutes": "10080",
            "auto.create.topics.enable": "false",
        }
    )
    assert told == BrokerLimits(900_000, WEEK_MS, False)
    # Whoever may not see the settings takes offsets to be forgotten after a day.
    assert BrokerLimits.of({}) == BrokerLimits(None, 0, None)


@pytest.mark.parametrize("reads", [True, False])
def test_a_query_that_may_not_see_how_long_offsets_are_kept_is_warned(
    bootstrap: str, reads: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(settings_of(bootstrap), "out")

    async def hidden(*_: object) -> Any:
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "DESCRIBE_CONFIGS", "broker 0")

    assert prepare_cluster(options, reads=True) == WEEK_MS
    assert not caplog.messages
    monkeypatch.setattr(checks_cluster, "broker_configs", hidden)
    assert prepare_cluster(options, reads=reads) == 0
    assert ["DESCRIBE_CONFIGS" in line for line in caplog.messages] == [True] * reads


def test_topics_that_rows_name(bootstrap: str) -> None:
    with topics_of(bootstrap, None) as topics:
        assert topics.refresh().topics == ()
        assert topics.ensure(["b", "a"]) == (("b", 1), ("a", 1))
        assert topics.ensure(["a", "c"]) == (("b", 1), ("a", 1), ("c", 1))
        assert topics.existing([TopicPartition("a", 0), TopicPartition("a", 7), OUT]) == {
            TopicPartition("a", 0)
        }
        with pytest.raises(RowRefused, match=r"cannot be the name of a topic.*nor '\.\.'$"):
            topics.ensure(["?"])
        run_on_own_thread(_delete(bootstrap, "a"))
        assert topics.refresh().topics == (("b", 1), ("c", 1))


@contextmanager
def topics_of(bootstrap: str, topic: str | None) -> Iterator[SinkTopics]:
    settings = settings_of(bootstrap)
    with closing(
        BlockingCluster(settings.bootstrap_servers, settings, RealClock(), RealRand())
    ) as cluster:
        yield SinkTopics(cluster, options_of(settings, topic), before_use=lambda _: None)


async def _delete(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.delete_topic(topic)


def test_a_topic_that_is_given_must_be_there(bootstrap: str) -> None:
    with topics_of(bootstrap, "nowhere") as topics, pytest.raises(TopicNotFound):
        topics.refresh()


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize("has_written", [False, True])
def test_a_driver_that_was_replaced_while_it_rested_stops(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, rests: bool, has_written: bool
) -> None:
    """And leaves alone what its successor has open."""
    with settled(bootstrap) as older:
        older.write(0, "a")
        with settled(bootstrap) as younger:
            if has_written:
                younger.write(1, "b")

            raised: list[BaseException] = []

            def meanwhile() -> None:
                with monkeypatch.context() as patch:
                    if rests:
                        patch.setattr(txn_machine, "RENEWED_AFTER_S", -1.0)
                    try:
                        older.write(1, "b")
                    except Exception as error:  # or it would be a failure of this task
                        raised.append(error)

            younger.during.append(meanwhile)
            younger.write(1 + has_written, "c")
            assert list(map(type, raised)) == [SinkFenced]
            assert len(younger.epochs) == 1 + has_written, "nobody has disturbed it"
    assert visible(bootstrap) == ["a", *["b"] * has_written, "c"]
