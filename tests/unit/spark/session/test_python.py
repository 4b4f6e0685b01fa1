"""Which Python Spark starts: this one where nobody chose, in a virtual environment that is not
activated, too."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from onceflow.spark.session import session
from onceflow.spark.session.python import choose_python, configured_master, is_other_python


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


def test_another_one_in_the_same_directory_is_another(tmp_path: Path) -> None:
    """`python3` of /usr/bin may be newer than the one that runs."""
    for name in ("python3.11", "python3.12"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python3").symlink_to("python3.12")
    path = {"PATH": str(tmp_path)}
    assert is_other_python(path, str(tmp_path / "python3.11"))
    assert not is_other_python(path, str(tmp_path / "python3.12"))
    assert not is_other_python(path, str(tmp_path / "python3"))


def test_the_same_file_in_another_environment_is_another(tmp_path: Path, other: Path) -> None:
    (tmp_path / "environment").mkdir()
    python = tmp_path / "environment" / "python3"
    python.symlink_to(other / "python3")
    assert is_other_python({"PATH": str(other)}, str(python))


# --- on other machines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"MASTER": "spark://far:7077"},
        {"PYSPARK_SUBMIT_ARGS": "--name 'my app' --master yarn pyspark-shell", "MASTER": "local"},
    ],
)
def test_for_a_master_that_is_known_to_be_elsewhere_nothing_is_set(
    other: Path, elsewhere: dict[str, str]
) -> None:
    assert chosen_by_importing(PATH=str(other), **elsewhere) is None


@pytest.mark.parametrize(
    ("environ", "defaults", "expected"),
    [
        ({}, "", None),
        ({"MASTER": "yarn"}, "", "yarn"),
        ({"MASTER": "yarn"}, "spark.master.rest.enabled true\n", "yarn"),
        ({"MASTER": "yarn"}, "# spark.master k8s://a\n spark.master\tlocal[2]\n", "local[2]"),
        ({}, "spark.master = spark://a:7077\nspark.ui.enabled false\n", "spark://a:7077"),
        ({}, "spark.master=local\nspark.master:yarn\n", "yarn"),
        (
            {"PYSPARK_SUBMIT_ARGS": "--master spark://b:1 pyspark-shell"},
            "spark.master yarn",
            "spark://b:1",
        ),
        ({"PYSPARK_SUBMIT_ARGS": "--master=local pyspark-shell"}, "spark.master yarn", "local"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=local pyspark-shell"}, "", "local"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf 'spark.app.name=a b' pyspark-shell"}, "", None),
        ({"PYSPARK_SUBMIT_ARGS": "--name 'not closed"}, "spark.master yarn", "yarn"),
    ],
)
def test_where_a_master_is_said(
    tmp_path: Path, environ: dict[str, str], defaults: str, expected: str | None
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text(defaults)
    for place in ({"SPARK_HOME": str(tmp_path)}, {"SPARK_CONF_DIR": str(tmp_path / "conf")}):
        assert configured_master({**environ, **place}) == expected


class NotYet(Exception):
    """Spark would be started now."""


def make_session(
    master: str, settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the start of Spark."""

    def stop(log_path: Path) -> None:
        raise NotYet

    monkeypatch.setattr(session, "_output_into", stop)
    monkeypatch.setattr(session, "prepare", lambda environ, java_home: None)
    monkeypatch.setattr(session, "find_java_home", lambda environ: tmp_path)
    for name in ("JAVA_HOME", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
    with pytest.raises(NotYet):
        session.make_session("a", master, settings, tmp_path / "log")


def test_a_session_that_is_elsewhere_takes_the_choice_back(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.setenv("PYSPARK_PYTHON", "to be restored")
    monkeypatch.delenv("PYSPARK_PYTHON")
    choose_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    make_session("local[1]", {}, tmp_path, monkeypatch)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    make_session("spark://far:7077", {}, tmp_path, monkeypatch)
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.parametrize(
    ("master", "expected"), [("local[1]", sys.executable), ("spark://far:7077", "python3")]
)
def test_a_session_that_is_there_is_told_where_it_is_here(
    other: Path, monkeypatch: pytest.MonkeyPatch, master: str, expected: str
) -> None:
    importlib.import_module("pyspark.sql")
    context = SimpleNamespace(master=master, pythonExec="python3")
    loaded = SimpleNamespace(SparkContext=SimpleNamespace(_active_spark_context=context))
    monkeypatch.setitem(sys.modules, "pyspark.core.context", loaded)
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.setenv("PYSPARK_PYTHON", "to be restored")
    monkeypatch.delenv("PYSPARK_PYTHON")
    choose_python()
    assert context.pythonExec == expected
    assert os.environ.get("PYSPARK_PYTHON", "python3") == expected


@pytest.mark.parametrize("master", ["local[1]", "spark://far:7077"])
def test_what_was_chosen_for_a_session_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "other")
    make_session(master, {}, tmp_path, monkeypatch)
    assert os.environ["PYSPARK_PYTHON"] == "other"
    # Spark itself looks at its setting under `spark-submit` only.
    make_session(master, {"spark.pyspark.python": "/mine/python"}, tmp_path, monkeypatch)
    assert os.environ["PYSPARK_PYTHON"] == "/mine/python"
