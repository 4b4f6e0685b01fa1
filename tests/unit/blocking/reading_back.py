"""What a reader of committed records sees of a topic."""

from __future__ import annotations

from typing import Any

from onceflow.client.settings.clients import ReaderSettings
from onceflow.client.worker.reader import BlockingReader


def visible(bootstrap: str, topic: str) -> list[bytes]:
    with BlockingReader(
        ReaderSettings.of(bootstrap_servers=bootstrap, fetch_max_wait_ms=50)
    ) as reader:
        batches: list[Any] = list(reader.read(topic, 0, *reader.ends(topic, 0)))
    return [value for batch in batches for value in batch.column("value").to_pylist()]
