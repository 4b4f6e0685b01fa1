"""A driver of its own: a query over a directory of text files, that dies or stops at a point.

Its one argument is JSON: `bootstrap`, `topic`, `name`, `input`, `checkpoint`, `scratch`; with `at`
a point, and with `signal` the number of the signal that it then sends itself: SIGKILL, even from
its tasks, or SIGSTOP, from the driver;
with `more` other arguments of `write_stream`, with `value` an expression for values of rows, with
`spark` settings of Spark.
It prints one line of JSON: the name of the error that ended the query, or null.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceflow.spark.sink.api import write_stream
from tests.spark.session import spark_session
from tests.spark.sink.hooks import DriverOnly, Once, Signal, at_points


def start(**plan: Any) -> subprocess.Popen[str]:
    """A process that does so."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(plan)], stdout=subprocess.PIPE, text=True
    )


def result(process: subprocess.Popen[str], patience_s: float = 240) -> Any:
    """What it printed; None when it was killed."""
    told, _ = process.communicate(timeout=patience_s)
    return json.loads(told) if process.returncode == 0 else -process.returncode


def files_query(spark: Any, plan: dict[str, Any]) -> Any:
    """One file at a time, all that there are."""
    frame = spark.readStream.option("maxFilesPerTrigger", 1).text(plan["input"])
    keyed = frame.selectExpr("value as key", f"{plan.get('value', 'value')} as value")
    given = {key: plan[key] for key in ("topic", "bootstrap", "name")}
    writer = write_stream(keyed, **given, **plan.get("more", {}))
    return writer.option("checkpointLocation", plan["checkpoint"]).trigger(availableNow=True)


def run(plan: dict[str, Any]) -> str | None:
    """The name of the error that ended the query."""
    scratch = Path(plan["scratch"])
    scratch.mkdir(exist_ok=True)
    settings = plan.get("spark", {})
    with (
        spark_session(scratch, settings=settings) as spark,
        at_points(_hook(plan, scratch / "mark")),
    ):
        query = files_query(spark, plan).start()
        try:
            query.awaitTermination()
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.startswith("onceflow.")]
            return lines[-1].partition(":")[0] if lines else type(error).__name__
        return None


def _hook(plan: dict[str, Any], mark: Path) -> Callable[[str], None]:
    point, number = plan.get("at", ""), plan.get("signal", signal.SIGKILL)
    if number != signal.SIGSTOP:
        return Once(point, mark, Signal(number, os.getpid()))

    def stand_still() -> None:
        # To this thread: when another one is to stop the process, this one runs on for a while.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    return DriverOnly(Once(point, mark, stand_still))


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
