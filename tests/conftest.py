"""What all tests share."""

from __future__ import annotations

import os
import signal
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from onceflow.runtime.compiling.compiling import at_import
from tests.doses import examples

# An example that takes long to draw or to run says something of the machine, not of the code.
settings.register_profile(
    "unhurried",
    settings(),
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")

# Tests are of compiled code, also where it has just been changed.
at_import.set()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Who is started in the background, or by `nohup`, may have been told to ignore Ctrl-C or the
    end of its terminal, and all it starts would ignore that, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """`ONCEFLOW_PART=1/2` leaves every other file of tests to whoever has `2/2`."""
    number, _, parts = os.environ.get("ONCEFLOW_PART", "").partition("/")
    if not parts or not collection_path.match("test_*.py"):
        return None
    mine = zlib.crc32(collection_path.stem.encode()) % int(parts) == int(number) - 1
    return None if mine else True
