"""Which Python Spark starts for its workers and sources: the running one, where nobody chose.

Spark takes `python3` of the PATH. In a virtual environment that is not activated that is another
one, which has no Onceflow: neither the source nor what tasks of the sink run would be found.

The JVM reads `PYSPARK_PYTHON` once, when it is started, so it has to be set before. A session that
is there already, on this machine, is told otherwise: functions that are made from now on run here,
and the source is registered instead of being looked for.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

CHOICE: Final = "PYSPARK_PYTHON"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""There when `spark-submit` has started this program: it has chosen, and its JVM runs."""
_USUAL: Final = "python3"
_CONTEXT: Final = "pyspark.core.context"
_LOCAL: Final = re.compile(r"local(\[.*)?|local-cluster\[.*")
_log = logging.getLogger("onceflow.spark")


def is_local(master: str) -> bool:
    """Whether everything runs on this machine, started by this program."""
    return _LOCAL.fullmatch(master) is not None


def choose_python() -> None:
    """For the Spark that is to come, and for the one that is there."""
    if is_other_python(os.environ, sys.executable):
        os.environ[CHOICE] = sys.executable
        _use_in_running_spark()


def is_other_python(environ: Mapping[str, str], executable: str) -> bool:
    """Whether Spark would start another Python than this, and nobody wanted that."""
    if CHOICE in environ or _SUBMITTED in environ or not executable:
        return False
    usual = shutil.which(_USUAL, path=environ.get("PATH"))
    # Not the files themselves: in virtual environments both are links to the same one.
    return usual is None or Path(usual).parent.resolve() != Path(executable).parent.resolve()


def _use_in_running_spark() -> None:
    """A session that was made before this package was imported."""
    loaded = sys.modules.get(_CONTEXT)
    context: Any = None if loaded is None else loaded.SparkContext._active_spark_context
    if context is None or context.pythonExec != _USUAL or not is_local(str(context.master)):
        return
    context.pythonExec = sys.executable
    try:
        from pyspark.sql import SparkSession

        from onceflow.spark.source import OnceflowSource

        session = SparkSession.getActiveSession()
        if session is not None:
            session.dataSource.register(OnceflowSource)
    except Exception as error:
        _log.warning(
            "format('onceflow') may not be found: Spark was started before onceflow.spark was "
            "imported and runs another Python (%s). Set %s=%s, or import onceflow.spark before the "
            "session is made",
            error,
            CHOICE,
            sys.executable,
        )
