"""What `onceflow.spark` offers by name, and that naming it is all that it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onceflow.spark
from onceflow.spark import (
    Pipeline,
    dead_letters,
    starting_offsets,
    write,
    write_stream,
)
from onceflow.spark.pipeline import pipeline
from onceflow.spark.sink import api as sink


def test_what_is_used_most_is_there_by_name() -> None:
    assert Pipeline is pipeline.Pipeline
    assert (write, write_stream) == (sink.write, sink.write_stream)
    assert starting_offsets is sink.starting_offsets
    assert dead_letters is sink.dead_letters


@pytest.mark.parametrize("name", onceflow.spark.__all__)
def test_every_name_is_what_it_says_however_it_is_asked_for(name: str) -> None:
    """A module of the same name would take its place as soon as somebody imports it."""
    first, again = getattr(onceflow.spark, name), getattr(onceflow.spark, name)
    assert first is again
    assert first.__name__ == name
    assert name in dir(onceflow.spark)


def test_there_is_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'write_streem'"):
        getattr(onceflow.spark, "write_streem")  # noqa: B009  # a name that mypy knows is wrong


@pytest.mark.parametrize("names", ["onceflow.spark", "onceflow.spark, onceflow.spark.sink.api"])
def test_importing_it_imports_no_spark(names: str) -> None:
    code = f"import {names}, sys; print('pyspark' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
