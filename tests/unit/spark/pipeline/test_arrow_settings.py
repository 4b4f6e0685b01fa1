"""How the tasks of an Arrow pipeline read: as its file says, in large pieces if it says nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from onceflow.client.settings.clients import ReaderSettings
from onceflow.spark.pipeline.arrow import PIECE_BYTES, task_of
from onceflow.spark.pipeline.parse import read_plan

PIECE = "max.partition.fetch.bytes"


def same(table: pa.Table) -> pa.Table:
    return table


def settings_of(options: dict[str, str], **settings: str) -> ReaderSettings:
    document = {
        "pipeline": {"name": "p", "checkpoint": "state"},
        "source": {"topics": ["in"], "format": "raw", "options": options},
        "transform": {"arrow": same},
        "sink": {"topic": "out", "format": "raw"},
        "settings": settings,
    }
    return task_of(read_plan(document, Path()), "localhost:9092", 4).settings


def test_pieces_are_large() -> None:
    assert settings_of({}).max_partition_fetch_bytes == PIECE_BYTES


@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_unless_their_size_is_given(prefix: str) -> None:
    assert settings_of({f"{prefix}{PIECE}": "1000"}).max_partition_fetch_bytes == 1000
    assert settings_of({}, **{PIECE: "1000"}).max_partition_fetch_bytes == 1000


def test_options_of_the_source_hold_for_tasks() -> None:
    assert settings_of({}).read_committed
    assert not settings_of({"kafka.isolation.level": "read_uncommitted"}).read_committed
