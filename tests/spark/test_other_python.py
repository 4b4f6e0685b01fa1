"""In a virtual environment that is not activated `python3` is another Python, without Onceflow:
what Spark starts is the running one all the same, even where Spark was there first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import onceflow
from tests.spark.session import spark_environment
from tests.spark.sink.world import fresh

pytestmark = pytest.mark.interop

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

bootstrap, topic, settings = json.loads(sys.argv[1])
builder = SparkSession.builder.master("local[1]")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
asked = spark.sparkContext.pythonExec

from onceflow.spark import write

frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
written = write(frame, topic=topic, bootstrap=bootstrap)
source = spark.read.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
print(json.dumps([asked, written, source.option("subscribe", topic).load().count()]))
"""
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def test_source_and_sink_are_found(broker: onceflow.Broker, tmp_path: Path) -> None:
    venv.create(tmp_path / "other", with_pip=False)
    other = tmp_path / "other/bin"
    lacks = subprocess.run(
        [other / "python3", "-c", "import pyspark"], capture_output=True, check=False
    )
    assert lacks.returncode, "the other Python has Spark, too"
    (tmp_path / "app.py").write_text(PROGRAM)
    chosen = {**os.environ, **spark_environment(), "PATH": f"{other}{os.pathsep}/usr/bin:/bin"}
    del chosen["PYSPARK_PYTHON"]
    plan = json.dumps([broker.bootstrap, fresh("other-python"), SETTINGS])
    done = subprocess.run(
        [sys.executable, tmp_path / "app.py", plan],
        env=chosen,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["python3", 3, 3]
