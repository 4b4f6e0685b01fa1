"""A program with a broker in it that a signal ends: it ends so, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

import onceflow
from onceflow.blocking import Admin, Producer

SECONDS: Final = 60.0


@contextmanager
def program(code: str, temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """It has a minute, with all that it forks off."""
    started = subprocess.Popen(
        [sys.executable, "-c", dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        start_new_session=True,
    )
    limit = threading.Timer(SECONDS, os.killpg, (started.pid, signal.SIGKILL))
    limit.start()
    try:
        yield started
    finally:
        limit.cancel()
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate(timeout=SECONDS)


def said(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def left_in(temporary: Path) -> list[str]:
    return [each.name for each in temporary.glob("onceflow-*") if "compiled" not in each.name]


BLOCK = """
    import signal, onceflow
    with onceflow.Broker(process={process}) as broker:
        print(broker.bootstrap, flush=True)
        signal.pause()
    """
ASYNC = """
    import asyncio, onceflow
    async def main():
        async with onceflow.Broker(process={process}) as broker:
            print(broker.bootstrap, flush=True)
            await asyncio.Event().wait()
    asyncio.run(main())
    """


@pytest.mark.parametrize(
    ("code", "process", "number"),
    [
        (BLOCK, False, signal.SIGTERM),
        (BLOCK, True, signal.SIGHUP),
        (ASYNC, False, signal.SIGHUP),
        (ASYNC, True, signal.SIGTERM),
    ],
    ids=["thread", "process", "async-thread", "async-process"],
)
def test_it_ends_by_the_signal_and_leaves_no_directory(
    code: str, process: bool, number: signal.Signals, tmp_path: Path
) -> None:
    with program(code.format(process=process), tmp_path) as started:
        bootstrap = said(started)
        with Admin(bootstrap) as admin:
            admin.create_topic("orders")
        with Producer(bootstrap) as producer:
            producer.send("orders", b"one").result()
        assert len(left_in(tmp_path)) == 1
        started.send_signal(number)
        assert started.wait(SECONDS) == -number
        assert left_in(tmp_path) == []
        assert started.stderr is not None
        assert started.stderr.read() == ""


def test_data_that_are_kept_stay(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    code = f"""
        import signal, onceflow
        with onceflow.Broker(data_dir={str(kept)!r}) as broker:
            print(broker.bootstrap, flush=True)
            signal.pause()
        """
    with program(code, tmp_path) as started:
        with Admin(said(started)) as admin:
            admin.create_topic("orders")
        started.terminate()
        assert started.wait(SECONDS) == -signal.SIGTERM
    with onceflow.Broker(data_dir=kept) as broker, Admin(broker.bootstrap) as admin:
        assert [each.name for each in admin.list_topics()] == ["orders"]


def test_a_handler_of_the_program_is_left_alone(tmp_path: Path) -> None:
    code = """
        import signal, sys, threading, onceflow
        def end(number, frame):
            sys.exit("by the program itself")
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        never = threading.Event()
        with onceflow.Broker() as broker:
            print(broker.bootstrap, flush=True)
            while True:  # Python may note a signal just before it would wait for one, for ever
                never.wait(0.1)
        """
    with program(code, tmp_path) as started:
        said(started)
        started.send_signal(signal.SIGHUP)
        started.terminate()
        assert started.wait(SECONDS) == 1
        assert left_in(tmp_path) == []
        assert started.stderr is not None
        assert started.stderr.read() == "by the program itself\n"


def test_the_last_one_gives_the_signals_back() -> None:
    # A broker that another test stopped on another thread may have left its handler.
    handlers = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
    for each, handler in handlers.items():
        signal.signal(each, handler)
    with onceflow.Broker(), onceflow.Broker():
        assert not {signal.getsignal(each) for each in handlers} & set(handlers.values())
    assert {each: signal.getsignal(each) for each in handlers} == handlers


def test_a_forked_child_removes_nothing_of_its_parent(tmp_path: Path) -> None:
    code = """
        import os, signal, threading, warnings, onceflow
        warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
        with onceflow.Broker() as broker:
            ready, says = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(says, b".")  # a signal that comes before Python has forked is forgotten
                while True:
                    threading.Event().wait(0.1)
            os.read(ready, 1)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), broker.data_dir.is_dir(), flush=True)
        """
    with program(code, tmp_path) as started:
        assert said(started) == "-15 True"
        assert started.wait(SECONDS) == 0


def test_a_stopped_broker_has_no_file_open(tmp_path: Path) -> None:
    """Also with a client that was reading, and before any garbage is collected."""
    code = """
        import gc, os, onceflow
        from confluent_kafka import Consumer
        from onceflow.blocking import Admin, Producer

        gc.disable()
        with onceflow.Broker(log_segment_bytes=1 << 20) as broker:
            with Admin(broker.bootstrap) as admin:
                admin.create_topic("orders", partitions=3)
            with Producer(broker.bootstrap) as producer:
                for _ in range(1000):
                    producer.send("orders", bytes(20_000))
            settings = {"group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
            consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
            consumer.subscribe(["orders"])
            assert consumer.poll(30) is not None
        links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
        files = [os.readlink(each) for each in links if os.path.lexists(each)]
        print([each for each in files if str(broker.data_dir) in each], flush=True)
        os._exit(0)
        """
    with program(code, tmp_path) as started:
        assert said(started) == "[]"
