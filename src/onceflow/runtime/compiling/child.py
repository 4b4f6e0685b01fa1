"""The process that compiles functions for another one, into the cache that they share.

Its arguments are the other's process id and `module:function` for each, the most urgent first. It
prints the name of each function when it is done, and ends when the other process is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from onceflow.runtime.compiling.compiling import Code

_NICE: Final = 10
"""Gives way to the program, and comes to an end on a busy machine all the same: with 19 it would
get a seventieth of a core there, and the slower code would cost more than compiling does."""
_LOOK_SECONDS: Final = 0.25


def _end_with(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_LOOK_SECONDS)
    os._exit(1)


def _give_way() -> None:
    with suppress(OSError):
        os.nice(_NICE)
    with suppress(OSError):  # where memory is short this process has to go, not the program
        Path("/proc/self/oom_score_adj").write_text("1000")


def _compile(name: str) -> None:
    module, _, function = name.partition(":")
    code = getattr(import_module(module), function)
    if isinstance(code, Code):  # else another process was faster
        code.compile()
    print(name, flush=True)


def main(parent: str, *names: str) -> None:
    threading.Thread(target=_end_with, args=(int(parent),), daemon=True).start()
    _give_way()
    for name in names:
        _compile(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
