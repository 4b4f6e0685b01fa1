"""A program that forks while its thread broker loads modules: the child gets whole ones."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import Final

import pytest

SECONDS: Final = 60.0

FORKS_WHILE = """
    import importlib, os, signal, sys, threading, warnings
    import onceflow
    {import_first}

    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)  # so it is
    MODULE = {module!r}
    is_loading, forks = threading.Event(), threading.Event()

    class SlowFinder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == MODULE and threading.current_thread() is not threading.main_thread():
                is_loading.set()
                forks.wait()
                threading.Event().wait(0.3)  # for as long as a fork waits, it cannot say so

    sys.meta_path.insert(0, SlowFinder)
    broker = onceflow.Broker()
    ready = threading.Thread(target=broker.start)
    ready.start()
    {cause}
    assert is_loading.wait(30)
    forks.set()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # its default ends a child that hangs
        module = importlib.import_module(MODULE)
        os._exit(0 if hasattr(module, {attribute!r}) else 1)
    _, status = os.waitpid(child, 0)
    ready.join()
    broker.stop()
    sys.exit(os.waitstatus_to_exitcode(status))
    """
ASKS = """
    ready.join()
    from onceflow.blocking import Admin
    def ask():
        with Admin(broker.bootstrap) as admin:
            {what}
    threading.Thread(target=ask, daemon=True).start()
    """


def forks_while(module: str, attribute: str, cause: str = "", import_first: str = "") -> str:
    """What a program says that forks just when its broker loads the module; it must end well."""
    program = dedent(FORKS_WHILE).format(
        module=module, attribute=attribute, cause=dedent(cause), import_first=import_first
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return f"{done.returncode} {done.stderr}"


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("onceflow.broker.main", "serve"),
        ("onceflow.broker.handlers.metadata", "handle"),
        ("onceflow.records.kernels", "walk"),
    ],
    ids=["start", "warm-up", "kernels"],
)
def test_while_it_starts(module: str, attribute: str) -> None:
    assert forks_while(module, attribute) == "0 "


def test_while_it_loads_what_a_request_needs() -> None:
    ask = ASKS.format(what="admin.list_groups()")
    assert forks_while("onceflow.broker.handlers.list_groups", "handle", ask) == "0 "


def test_requests_do_not_wait_for_what_is_loaded_ahead() -> None:
    program = """
        import sys, threading
        from importlib.machinery import PathFinder
        import onceflow
        from onceflow.blocking import Admin

        is_loading, is_done = threading.Event(), threading.Event()

        class SlowFinder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "onceflow.records.kernels":
                    found = PathFinder.find_spec(name, path)
                    load = found.loader.exec_module
                    found.loader.exec_module = lambda module: wait() or load(module)
                    return found

        def wait():
            is_loading.set()
            is_done.wait()

        sys.meta_path.insert(0, SlowFinder)
        with onceflow.Broker() as broker:
            is_loading.wait()
            late = threading.Timer(20, is_done.set)
            late.start()
            with Admin(broker.bootstrap) as admin:
                admin.create_topic("orders")
            late.cancel()
            is_late = is_done.is_set()
            is_done.set()
        sys.exit(is_late)
        """
    done = subprocess.run([sys.executable, "-c", dedent(program)], timeout=SECONDS, check=False)
    assert done.returncode == 0
