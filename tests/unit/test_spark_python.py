"""Which Python Spark starts: this one where nobody chose, in a virtual environment that is not
activated, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceflow.spark import session
from onceflow.spark.session_python import is_other_python


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A directory with a `python3` that has no Onceflow."""
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    return tmp_path


def chosen_by_importing(**environ: str) -> str | None:
    """What Spark would find in the environment."""
    kept = {key: each for key, each in os.environ.items() if not key.startswith("PYSPARK_")}
    code = (
        "import json, os, onceflow.spark, sys; "
        "print(json.dumps([os.environ.get('PYSPARK_PYTHON'), 'pyspark' in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    found, has_loaded_spark = json.loads(done.stdout)
    assert not has_loaded_spark
    return None if found is None else str(found)


def test_where_nobody_chose_it_is_the_running_one(other: Path) -> None:
    assert chosen_by_importing(PATH=str(other)) == sys.executable


def test_what_was_chosen_stays(other: Path) -> None:
    assert chosen_by_importing(PATH=str(other), PYSPARK_PYTHON="mine") == "mine"
    assert chosen_by_importing(PATH=str(other), PYSPARK_GATEWAY_PORT="1") is None


def test_where_spark_would_take_this_one_anyway_nothing_is_set(other: Path) -> None:
    here = Path(sys.executable).parent
    path = f"{here}{os.pathsep}{other}"
    assert is_other_python({"PATH": path}, sys.executable) is not (here / "python3").exists()
    assert is_other_python({"PATH": ""}, sys.executable)
    assert not is_other_python({"PATH": str(other)}, "")


def test_a_setting_of_spark_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark itself looks at it under `spark-submit` only."""

    class NotYet(Exception):
        pass

    def stop(environ: object, java_home: object) -> None:
        raise NotYet

    monkeypatch.setattr(session, "prepare", stop)
    monkeypatch.setattr(session, "find_java_home", lambda environ: tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", "other")
    monkeypatch.setenv("JAVA_HOME", "")
    settings = {"spark.pyspark.python": "/mine/python"}
    with pytest.raises(NotYet):
        session.make_session("a", "local[1]", settings, tmp_path / "log")
    assert os.environ["PYSPARK_PYTHON"] == "/mine/python"
