"""A fresh installation: records are handled at once, in plain Python, and compiled beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import pytest

from onceflow.records.validate import read_kernels

SECONDS: Final = 300.0  # compiling takes its time
ALLOWED_CPU_SECONDS: Final = 2.0
"""What the first use of a fresh installation may cost the process more than any other."""

FIRST_USE = """
    import json, resource, sys
    import onceflow
    from onceflow.blocking import Consumer, Producer

    with onceflow.Broker(topics={"orders": 1}) as broker:
        with Producer(broker.bootstrap) as producer:
            producer.send("orders", b"v").result()
        with Consumer(broker.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            value = next(iter(consumer)).value
    from onceflow.records import kernels
    from onceflow.records.interpreted import InterpretedKernel, compiling

    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "value": value.decode(),
        "cpu": used.ru_utime + used.ru_stime,
        "interpreted": isinstance(kernels.walk, InterpretedKernel),
        "compiled": compiling.child is not None or compiling.thread is not None,
    }))
    """

# Keeps the kernels busy until `until`, and can say what became of them.
BUSY = """
    import json, os, sys, threading
    import pyarrow as pa
    from onceflow.records import kernels, write_kernels
    from onceflow.records.columns import decode, encode_all
    from onceflow.records.interpreted import InterpretedKernel, compiling

    ROWS = pa.record_batch({"value": pa.array([b"v"] * 100)})

    def use():
        (batch,) = encode_all(ROWS, max_batch_bytes=1 << 20, now_ms=0)
        assert decode([batch]).column("value").to_pylist() == [b"v"] * 100

    def is_interpreted():
        called = kernels.fill, write_kernels.most_bytes, write_kernels.write
        return any(isinstance(each, InterpretedKernel) for each in called)

    def busy(until):
        while not until():
            use()

    """


def python(cache: Path | None, code: str, **environment: str) -> subprocess.Popen[str]:
    """A program of its own, with a cache that is its own, or the usual one."""
    places = {} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-c", dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **places, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(cache: Path | None, code: str, **environment: str) -> str:
    """What it prints; it must end well."""
    with python(cache, code, **environment) as program:
        output, _ = program.communicate(timeout=SECONDS)
    assert program.returncode == 0, output
    return output


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Whoever adopts orphans may not have taken note of its end yet.
    return " Z " not in Path(f"/proc/{pid}/stat").read_text()


def test_a_fresh_installation_costs_little_more_than_any_other(tmp_path: Path) -> None:
    fresh: dict[str, Any] = json.loads(said(tmp_path, FIRST_USE))
    assert (fresh["value"], fresh["interpreted"], fresh["compiled"]) == ("v", True, False)
    assert not list(tmp_path.rglob("*.nbc"))
    read_kernels()  # they are compiled for all other tests, and kept
    warm: dict[str, Any] = json.loads(said(None, FIRST_USE))
    assert (warm["value"], warm["interpreted"]) == ("v", False)
    print(f"CPU seconds of the first use: {fresh['cpu']:.2f}, of another: {warm['cpu']:.2f}")
    assert fresh["cpu"] < warm["cpu"] + ALLOWED_CPU_SECONDS


@pytest.mark.long  # compiles everything
def test_what_is_used_is_compiled_beside_it_and_exchanged(tmp_path: Path) -> None:
    output = said(
        tmp_path,
        BUSY
        + """
    import logging
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    old = kernels.fill
    use()
    assert compiling.thread is None, "too early"
    children = set()
    busy(lambda: children.add(compiling.child) or not is_interpreted())
    assert any(children)
    thread = compiling.thread
    if thread is not None:
        thread.join()
    use()
    assert compiling.child is None and compiling.thread is None
    assert all(each.returncode == 0 for each in children if each), "reaped"
    assert not hasattr(kernels.fill_headers, "signatures"), "nobody has called it"
    print("OLD", isinstance(old, InterpretedKernel) and old.load())
    """,
    )
    assert "functions in another process" in output
    assert "compiled after" in output
    assert "OLD True" in output
    assert {each.name.partition(".")[2].partition("-")[0] for each in tmp_path.rglob("*.nbc")} >= {
        f"{name}" for name in ("fill", "write", "most_bytes")
    }
    again = said(tmp_path, BUSY + AGAIN)
    assert again == "False\n"


AGAIN = """
    use()
    print(is_interpreted())
    """
KILLED = """
    os.kill(os.getpid(), 9)
    """
STARTED = """
    busy(lambda: compiling.child is not None)
    print(compiling.child.pid, flush=True)
    """


def test_the_other_process_ends_with_the_program(tmp_path: Path) -> None:
    child = int(said(tmp_path, BUSY + STARTED))
    assert not is_there(child)


def test_the_other_process_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    with python(tmp_path, BUSY + STARTED + KILLED) as program:
        output, _ = program.communicate(timeout=SECONDS)
    assert program.returncode == -signal.SIGKILL
    watched = f"""
        import os, threading
        while os.path.exists("/proc/{int(output)}"):
            threading.Event().wait(0.05)
        """
    said(None, watched)


def test_a_forked_child_waits_for_nobody(tmp_path: Path) -> None:
    """The thread that would exchange its kernels is its parent's; it gets one of its own."""
    output = said(
        tmp_path,
        BUSY
        + """
    import signal, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    busy(lambda: compiling.child is not None)
    forked = os.fork()
    if forked == 0:
        signal.alarm(60)  # its default ends a child that hangs
        assert compiling.child is None and compiling.thread is None
        busy(lambda: compiling.thread is not None)
        assert compiling.child is None, "one at a time"
        os._exit(0)
    _, status = os.waitpid(forked, 0)
    assert compiling.child.poll() is None, "the parent's goes on"
    print(os.waitstatus_to_exitcode(status))
    """,
    )
    assert output == "0\n"


@pytest.mark.long  # compiles everything
def test_a_forked_child_finds_what_was_compiled_since(tmp_path: Path) -> None:
    """As the workers of a program that has called a kernel once, before it forked them."""
    output = said(
        tmp_path,
        BUSY
        + """
    use()

    def forked(work):
        child = os.fork()
        if child == 0:
            work()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def looks():
        use()
        while (thread := compiling.thread) is not None:
            assert compiling.child is None
            thread.join()
        os._exit(is_interpreted())

    print(forked(looks), forked(lambda: busy(lambda: not is_interpreted())), forked(looks))
    """,
    )
    assert output == "1 0 0\n"


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("sys.executable = '/nowhere/python3'", "no process can be started"),
        ("sys.executable = '/usr/bin/true'", "is not a Python that can be started"),
        ("compiling._find_cache = lambda: Cache(None, {})", "there is no place to keep them"),
    ],
)
@pytest.mark.long  # compiles everything
def test_without_a_cache_or_a_process_it_is_compiled_here(
    tmp_path: Path, cause: str, reason: str
) -> None:
    output = said(
        tmp_path,
        BUSY
        + f"""
    import logging
    from onceflow.runtime.compiling.compiling import Cache
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    {cause}
    busy(lambda: not is_interpreted())
    """,
    )
    assert "functions in this process: " in output
    assert reason in output


def test_a_process_that_was_killed_is_not_started_again(tmp_path: Path) -> None:
    """It may have been for its memory; plain Python needs none."""
    output = said(
        tmp_path,
        BUSY
        + """
    busy(lambda: compiling.child is not None)
    thread = compiling.thread
    compiling.child.kill()
    thread.join()
    for _ in range(100):
        use()
    print(compiling.thread, is_interpreted())
    """,
    )
    assert "this process goes on without compiled code" in output
    assert output.endswith("None True\n")
