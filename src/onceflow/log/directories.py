"""The names of the directories that hold partition logs."""

from __future__ import annotations

import re

from onceflow.types import LogId, topic_id_text


def directory_name(topic: str, log_id: LogId) -> str:
    """The id makes it unique for ever, so a deleted topic's files never get in the way."""
    return f"{topic[:180]}-{log_id.partition}.{topic_id_text(log_id.topic_id)}"


def is_log_directory(name: str) -> bool:
    """Whether a name is of the form that `directory_name` gives."""
    return re.fullmatch(r".+-\d+\.[A-Za-z0-9_-]{22}", name) is not None
