"""What all tests share."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from onceflow.runtime.compiling.compiling import at_import
from tests.doses import examples

# An example that takes long says something of the machine, not of the code.
settings.register_profile("unhurried", settings(), deadline=None, max_examples=examples(100))
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
