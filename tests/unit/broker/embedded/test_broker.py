"""The broker inside a program: on a thread, in a process, sync and async, and all its endings."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest
from confluent_kafka import Producer

import onceflow
from onceflow.broker.embedded.broker import Broker, BrokerEnded, BrokerMisused, BrokerNotStarted
from onceflow.cli.common.session import connected
from onceflow.client.admin import admin
from onceflow.errors import DiskFailed, InvalidSetting
from onceflow.runtime.disk import Bytes, RealFile

BOTH = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
SECONDS = 30.0


def create_topic(broker: Broker, name: str) -> None:
    with connected(broker.bootstrap) as session:
        session.run(admin.create_topic(session.cluster, name))


def topics(broker: Broker) -> dict[str, int]:
    with connected(broker.bootstrap) as session:
        found = session.run(admin.list_topics(session.cluster))
    return {topic.name: len(topic.partitions) for topic in found}


def answers(bootstrap: str) -> bool:
    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except ConnectionRefusedError:
        return False
    return True


def own_threads() -> set[str]:
    return {each.name for each in threading.enumerate() if each.name.startswith("onceflow")}


def run_python(code: str, environment: Mapping[str, str] | None = None) -> str:
    """What a program of its own prints; it must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(code)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@BOTH
def test_it_serves_in_the_block_and_leaves_nothing_behind(process: bool) -> None:
    with onceflow.Broker(process=process) as broker:
        create_topic(broker, "orders")
        assert topics(broker) == {"orders": 1}
        directory, bootstrap = broker.data_dir, broker.bootstrap
        assert (directory / "lock").exists()
        assert "opened" in broker.log_text
    assert not directory.exists()
    assert not answers(bootstrap)
    assert not own_threads()
    assert "opened" in broker.log_text  # can still be looked at


@BOTH
def test_it_ends_well_when_the_block_fails(process: bool) -> None:
    broker = Broker(process=process)

    def block() -> str:
        with broker:
            raise ValueError(broker.bootstrap)

    with pytest.raises(ValueError, match=r"127\.0\.0\.1") as raised:
        block()
    assert not answers(str(raised.value))
    assert not broker.data_dir.exists()
    assert not own_threads()


@BOTH
def test_settings_have_kafkas_names(process: bool) -> None:
    settings = {"num.partitions": 3, "auto.create.topics.enable": False}
    with Broker(settings, process=process, log_retention_ms=1000, durability="os") as broker:
        with connected(broker.bootstrap) as session:
            session.run(admin.create_topic(session.cluster, "orders"))
            configs = session.run(admin.topic_configs(session.cluster, "orders"))
        assert topics(broker) == {"orders": 3}
        assert {each.name: each.value for each in configs}["retention.ms"] == "1000"
        assert "durability os" in broker.log_text


@BOTH
def test_the_environment_does_not_count(process: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEFLOW_NUM_PARTITIONS", "7")
    monkeypatch.setenv("ONCEFLOW_NODE_ID", "nonsense")
    with Broker(process=process) as broker:
        create_topic(broker, "orders")
        assert topics(broker) == {"orders": 1}


@BOTH
def test_data_are_kept_where_they_are_wanted(process: bool, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with Broker(process=process, data_dir=kept) as broker:
        create_topic(broker, "orders")
    with Broker(process=process, data_dir=str(kept)) as broker:
        assert topics(broker) == {"orders": 1}


@BOTH
def test_data_are_kept_where_a_setting_says(process: bool, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with Broker({"data.dir": str(kept)}, process=process) as broker:
        assert broker.data_dir == kept
        create_topic(broker, "orders")
    with Broker({"data_dir": kept}, data_dir=str(kept), process=process) as broker:
        assert topics(broker) == {"orders": 1}


def test_two_data_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidSetting, match=r"data_dir is '.*one' and the setting data\.dir is '.*"
    ):
        Broker({"data.dir": tmp_path / "two"}, data_dir=tmp_path / "one")
    with pytest.raises(InvalidSetting, match=r"data\.dir = '' is not allowed"):
        Broker({"data.dir": ""}).start()


def test_the_durability_of_a_mapping_counts() -> None:
    with Broker({"durability": "os"}) as broker:
        assert "durability os" in broker.log_text


# --- what keeps it from starting ---------------------------------------------------------------


@BOTH
def test_a_wrong_setting_is_told(process: bool) -> None:
    with pytest.raises(InvalidSetting, match=r"num\.partitions = '0' is not.*from 1 to"):
        Broker(process=process, num_partitions=0).start()
    with pytest.raises(InvalidSetting, match=r"did you mean 'num\.partitions'"):
        Broker({"num.partition": 1}, process=process).start()
    assert not own_threads()


@BOTH
def test_a_port_that_is_taken_is_told(process: bool) -> None:
    with Broker() as other, pytest.raises(BrokerNotStarted, match=f"{other.bootstrap}: .*in use"):
        Broker(process=process, listen=other.bootstrap).start()
    assert not own_threads()


def test_it_is_used_once() -> None:
    broker = Broker()
    with pytest.raises(BrokerMisused, match="bootstrap: this broker was not started"):
        _ = broker.bootstrap
    with pytest.raises(BrokerMisused, match="data_dir: this broker was not started"):
        _ = broker.data_dir
    with broker, pytest.raises(BrokerMisused, match="start: this broker is running"):
        broker.start()
    broker.stop()  # once more is no harm
    with pytest.raises(BrokerMisused, match="start: this broker was stopped; make a new Broker"):
        broker.start()


# --- restart and kill --------------------------------------------------------------------------


@BOTH
def test_it_comes_back_at_the_same_address_with_the_same_data(process: bool) -> None:
    with Broker(process=process) as broker:
        bootstrap = broker.bootstrap
        create_topic(broker, "orders")
        broker.restart()
        assert broker.bootstrap == bootstrap
        assert topics(broker) == {"orders": 1}
        assert "0 topics, new, durability" in broker.log_text
        assert broker.log_text.count("stopped cleanly before") == 1


def test_a_killed_one_is_gone_until_it_is_restarted() -> None:
    with Broker(process=True) as broker:
        create_topic(broker, "orders")
        pid, bootstrap = broker.pid, broker.bootstrap
        broker.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert not answers(bootstrap)
        with pytest.raises(BrokerMisused, match="kill: this broker was killed"):
            broker.kill()
        broker.restart()
        assert broker.pid != pid
        assert topics(broker) == {"orders": 1}


def test_nobody_else_is_given_its_port_while_it_is_away() -> None:
    with Broker(process=True) as broker:
        broker.kill()
        host, _, port = broker.bootstrap.rpartition(":")
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))


def test_a_killed_one_may_be_left_behind() -> None:
    with Broker(process=True) as broker:
        broker.kill()
    assert not broker.data_dir.exists()


def test_a_thread_cannot_be_killed() -> None:
    with Broker() as broker:
        with pytest.raises(BrokerMisused, match=r"use Broker\(process=True\)"):
            broker.kill()
        with pytest.raises(BrokerMisused, match=r"use Broker\(process=True\)"):
            _ = broker.pid


def break_the_disk(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns when the broker has noticed."""

    def fail(file: RealFile, position: int, data: Bytes) -> None:
        raise DiskFailed("no such sector")

    monkeypatch.setattr(RealFile, "pwrite_durable", fail)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    producer.produce("orders", b"one")  # makes a topic, and so the journal write
    (thread,) = [each for each in threading.enumerate() if each.name == "onceflow-broker"]
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_one_that_ended_by_itself_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerEnded, match="no such sector"), Broker() as broker:
        break_the_disk(broker, monkeypatch)
    assert "the disk failed, the broker stops" in broker.log_text
    assert not own_threads()


def test_what_failed_in_the_block_is_told_rather(monkeypatch: pytest.MonkeyPatch) -> None:
    def block() -> None:
        with Broker() as broker:
            break_the_disk(broker, monkeypatch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()


def test_a_process_that_was_killed_is_told_at_the_end() -> None:
    broker = Broker(process=True)

    def block() -> None:
        with broker:
            os.kill(broker.pid, signal.SIGKILL)
            os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(BrokerEnded, match=r"was killed by SIGKILL; the last line of its log: .*"):
        block()
    assert not broker.data_dir.exists()


def test_a_process_that_was_told_to_stop_has_ended_well() -> None:
    with Broker(process=True) as broker:
        os.kill(broker.pid, signal.SIGTERM)
        os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)


# --- beside others -----------------------------------------------------------------------------


def test_two_in_one_process_do_not_meet() -> None:
    with Broker() as one, Broker(num_partitions=2) as two:
        create_topic(one, "here")
        create_topic(two, "there")
        assert topics(one) == {"here": 1}
        assert topics(two) == {"there": 2}
        assert str(one.data_dir) in one.log_text
        assert str(two.data_dir) not in one.log_text
        assert str(one.data_dir) not in two.log_text


@BOTH
def test_async_and_the_callers_loop_goes_on(process: bool) -> None:
    async def main() -> tuple[dict[str, int], int]:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.001)
                turns += 1

        turning = asyncio.create_task(turn())
        async with onceflow.Broker(process=process) as broker:
            started = turns
            await asyncio.to_thread(create_topic, broker, "orders")
            found = await asyncio.to_thread(topics, broker)
        turning.cancel()
        return found, started

    found, turns_while_starting = asyncio.run(main())
    assert found == {"orders": 1}
    assert turns_while_starting > 0
    assert not own_threads()


def test_a_cancelled_start_leaves_nothing() -> None:
    async def main() -> None:
        broker = Broker()
        entering = asyncio.create_task(broker.__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert not broker.data_dir.exists()

    asyncio.run(main())
    assert not own_threads()


def test_async_failures_are_raised_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker(data_dir=tmp_path), Broker(data_dir=tmp_path):
            pass

    with pytest.raises(BrokerNotStarted, match="in use"):
        asyncio.run(main())


# --- programs of their own ---------------------------------------------------------------------


def test_importing_the_package_is_cheap() -> None:
    loaded = run_python("import onceflow, sys; print(*sys.modules)").split()
    assert not {"asyncio", "logging", "uvloop", "onceflow.broker"} & set(loaded)
    with pytest.raises(AttributeError, match="no attribute 'Brokr'"):
        getattr(onceflow, "Brokr")  # noqa: B009  # a name that mypy knows is wrong


@BOTH
def test_a_forgotten_one_ends_with_the_program(process: bool) -> None:
    said = run_python(
        f"""
        import onceflow
        broker = onceflow.Broker(process={process}).start()
        print(broker.bootstrap, broker.data_dir)
        """
    )
    bootstrap, directory = said.split()
    assert not answers(bootstrap)
    assert not Path(directory).exists()


FORKING = """
    import atexit, os, warnings
    import onceflow
    from onceflow.cli.common.session import connected

    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)  # so it is
    parent = os.getpid()
    try:
        with onceflow.Broker(process={process}) as broker:
            child = os.fork()
            if child == 0:
                try:
                    broker.restart()
                except onceflow.broker.embedded.broker.BrokerMisused as error:
                    print(error, flush=True)
                raise ZeroDivisionError
            os.waitpid(child, 0)
            print(broker.data_dir.is_dir())
            with connected(broker.bootstrap):
                print("served")
        print(broker.data_dir.is_dir())
    finally:
        if os.getpid() != parent:  # out of the block; now what is registered for the exit
            atexit._run_exitfuncs()
            os._exit(0)
    """


@BOTH
def test_a_forked_child_does_not_end_its_parents_broker(process: bool) -> None:
    assert run_python(FORKING.format(process=process)).splitlines() == [
        "restart: this process was forked off the one that has the broker",
        "True",
        "served",
        "False",
    ]


def test_modules_beside_the_program_are_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise SystemExit('the wrong one')")
    code = """
        import os
        import onceflow
        os.chdir(os.environ["ELSEWHERE"])
        with onceflow.Broker(process=True):
            print("served")
        """
    assert run_python(code, {"ELSEWHERE": str(tmp_path)}) == "served\n"
