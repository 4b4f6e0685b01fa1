"""Small frozen values that broker and client share."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import NamedTuple
from uuid import UUID


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogId(NamedTuple):
    """Which partition log: names may be used again after a deletion, topic ids never are."""

    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{topic_id_text(self.topic_id)}-{self.partition}"


def topic_id_text(topic_id: UUID) -> str:
    """A topic id the way Kafka's tools print it: URL-safe base64 without padding."""
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
