"""Which Python Spark starts for its workers and sources: the running one, unless the user chose.

Spark takes `python3` of the PATH. In a virtual environment that is not activated that is another
one, which has no Onceflow: neither the source nor what tasks of the sink run would be found.

The JVM reads `PYSPARK_PYTHON` once, when it is started, so it has to be set before. A session that
is there already, on this machine, is changed instead: functions that are made from now on run with
this Python, and the source is registered instead of being looked for.

Machines of a cluster have their Python where they have it, so nothing is chosen for a master that
is known to be elsewhere. A session that is still to come may name one that is not known yet.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

CHOICE: Final = "PYSPARK_PYTHON"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""There when `spark-submit` has started this program: it has chosen, and its JVM runs."""
_USUAL: Final = "python3"
_CONTEXT: Final = "pyspark.core.context"
_LOCAL: Final = re.compile(r"local(\[.*)?|local-cluster\[.*")
_DEFAULT_MASTER: Final = re.compile(r"^\s*spark\.master(?:\s*[=:]\s*|\s+)(\S+)", re.MULTILINE)
_SUBMITTED_MASTER: Final = re.compile(
    r"^(?:--master[=\n]|--conf=spark\.master=|(?:--conf|-c)\nspark\.master=)(\S+)", re.MULTILINE
)
_log = logging.getLogger("onceflow.spark")


def is_local(master: str) -> bool:
    """Whether everything runs on this machine, started by this program."""
    return _LOCAL.fullmatch(master) is not None


_ours: Final[set[str]] = set()
"""What was chosen here, not by the user."""


def choose_python() -> None:
    """For the Spark that is to come, and for the one that is there."""
    if not is_other_python(os.environ, sys.executable):
        return
    context = _running_context()
    master = configured_master(os.environ) if context is None else str(context.master)
    if master is None or is_local(master):
        os.environ[CHOICE] = sys.executable
        _ours.add(sys.executable)
        if context is not None:
            _use_in_running_spark(context)


def take_back_choice() -> None:
    """Where the session that is about to be made turns out to be one on other machines."""
    if os.environ.get(CHOICE) in _ours:
        del os.environ[CHOICE]


def is_other_python(environ: Mapping[str, str], executable: str) -> bool:
    """Whether Spark would start another Python than this one, without the user's choice."""
    if CHOICE in environ or _SUBMITTED in environ or not executable:
        return False
    usual = shutil.which(_USUAL, path=environ.get("PATH"))
    if usual is None:
        return True
    # Both have to be the same: the pythons of virtual environments are links to one file, and one
    # directory may have several pythons.
    there, here = Path(usual), Path(executable)
    return there.parent.resolve() != here.parent.resolve() or there.resolve() != here.resolve()


def configured_master(environ: Mapping[str, str]) -> str | None:
    """The master of a session that names none itself, as `spark-submit` finds it; None where it is
    not said."""
    return (
        _submitted_master(environ.get("PYSPARK_SUBMIT_ARGS", ""))
        or _default_master(environ)
        or environ.get("MASTER")
    )


def _submitted_master(arguments: str) -> str | None:
    try:
        words = shlex.split(arguments)
    except ValueError:  # a quotation that is not closed; Spark will say so
        return None
    found = _SUBMITTED_MASTER.findall("\n".join(words))
    return found[-1] if found else None


def _default_master(environ: Mapping[str, str]) -> str | None:
    """That of `spark-defaults.conf`."""
    home = environ.get("SPARK_HOME") or _installed_home()
    directory = environ.get("SPARK_CONF_DIR") or (home and str(Path(home) / "conf"))
    if not directory:
        return None
    try:
        text = (Path(directory) / "spark-defaults.conf").read_text("utf-8", errors="replace")
    except OSError:
        return None
    found = _DEFAULT_MASTER.findall(text)
    return found[-1] if found else None


def _installed_home() -> str | None:
    spec = find_spec("pyspark")
    return None if spec is None or spec.origin is None else str(Path(spec.origin).parent)


def _running_context() -> Any:
    """Of a session that was made before this package was imported; None where there is none."""
    loaded = sys.modules.get(_CONTEXT)
    return None if loaded is None else loaded.SparkContext._active_spark_context


def _use_in_running_spark(context: Any) -> None:
    if context.pythonExec != _USUAL:
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
