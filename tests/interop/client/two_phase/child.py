"""The shop of `examples/two_phase_commit`, in processes that kill themselves on the way.

    python -m tests.interop.client.two_phase.child BOOTSTRAP DATABASE

Each line of input is a process, forked off this one, which has loaded all that it needs: the number
of orders, and the point at which it is gone; 0: it is not. Points are counted: each call of the
producer has one before and one after it, each statement of SQLite one before it. It says how many
it has passed, this one with which status it ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pyarrow as pa

from onceflow.client.producer.producer import Producer
from onceflow.records.columns import encode_all

SHOP = Path(__file__).resolve().parents[4] / "examples" / "two_phase_commit" / "shop.py"
CALLS = (
    "init_transactions",
    "begin_transaction",
    "send",
    "prepare_transaction",
    "complete_transaction",
)


class Points:
    """Counts, and dies at one."""

    def __init__(self, fatal: int) -> None:
        self._fatal = fatal
        self.passed = 0

    def reach(self) -> None:
        self.passed += 1
        if self.passed == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(*args: Any, **named: Any) -> Any:
            self.reach()
            found = await call(*args, **named)
            self.reach()
            return found

        return watched


def preload() -> None:
    """Loads what is compiled, once for all that are forked off."""
    row = pa.record_batch({"value": pa.array([b"x"])})
    list(encode_all(row, max_batch_bytes=1 << 10, now_ms=0))


def example() -> Any:
    spec = spec_from_file_location("shop", SHOP)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sell(bootstrap: str, database: str, orders: int, point: int) -> None:
    points, shop = Points(point), example()
    for name in CALLS:
        setattr(Producer, name, points.around(getattr(Producer, name)))
    with closing(shop.opened(database)) as connection:
        connection.set_trace_callback(lambda statement: points.reach())
        asyncio.run(shop.sell(bootstrap, connection, orders))
    print("passed", points.passed, flush=True)


def main(bootstrap: str, database: str) -> None:
    preload()
    for line in sys.stdin:
        orders, point = map(int, line.split())
        child = os.fork()
        if not child:
            sell(bootstrap, database, orders, point)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
