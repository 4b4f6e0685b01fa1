"""The examples, each run as it is, one of them on Apache Kafka: what comes out is what a
computation of the same input in plain Python gives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceflow.spark import Pipeline
from tests.spark.pipeline.examples import EXAMPLES
from tests.spark.pipeline.judge import judge_example
from tests.spark.pipeline.places import make_topics
from tests.spark.pipeline.world import example, produce, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("name", "bootstrap"),
    [(name, "kafka" if name == "page_views" else "broker") for name in EXAMPLES],
    indirect=["bootstrap"],
)
def test_an_example(name: str, spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """On some input, and again on that and more: the generator begins anew each time."""
    found = EXAMPLES[name]
    path, generate = example(name, tmp_path)
    make_topics(found, bootstrap)
    pipeline = Pipeline.from_file(path, bootstrap=bootstrap)
    for count in (200, 150):
        asyncio.run(generate.send(bootstrap, count))
        pipeline.run(spark, once=True)
    checkpoint = path.parent / found.checkpoint
    assert judge_example(found, bootstrap, checkpoint) == []
    rows = read_all(bootstrap, found.output)
    assert rows
    assert read_all(bootstrap, found.refused)

    produce(bootstrap, found.output, [(rows[0].key, rows[0].value)])
    problems = judge_example(found, bootstrap, checkpoint)
    assert any(each.startswith("rows of ") for each in problems), "the judge saw no row too many"
