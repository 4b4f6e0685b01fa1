"""Everything that asks or changes a cluster and moves no records, in one place to import from."""

from __future__ import annotations

from onceflow.client.groups import (
    commit_offsets,
    committed_offsets,
    delete_group,
    describe_group,
    list_groups,
    require_empty,
)
from onceflow.client.offsets import list_offsets, offset_ranges, offsets_at
from onceflow.client.topics import (
    add_partitions,
    alter_configs,
    create_topic,
    delete_topic,
    describe_topic,
    list_topics,
    topic_configs,
)

__all__ = [
    "list_topics",
    "describe_topic",
    "topic_configs",
    "create_topic",
    "delete_topic",
    "add_partitions",
    "alter_configs",
    "list_offsets",
    "offset_ranges",
    "offsets_at",
    "list_groups",
    "describe_group",
    "committed_offsets",
    "commit_offsets",
    "require_empty",
    "delete_group",
]
