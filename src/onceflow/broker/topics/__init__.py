"""The topics of this broker and their partitions, the metadata log that they are a fold over, and
the logs in which the broker keeps its own state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.topics.internal_logs import (
        OFFSETS_TOPIC as OFFSETS_TOPIC,
        POLICIES as POLICIES,
        TRANSACTIONS_TOPIC as TRANSACTIONS_TOPIC,
    )
    from onceflow.broker.topics.internal_topic import OwnTopic as OwnTopic, Unapplied as Unapplied
    from onceflow.broker.topics.metadata_log import (
        METADATA_LOG as METADATA_LOG,
        METADATA_TOPIC as METADATA_TOPIC,
        log_batches as log_batches,
        log_records as log_records,
    )
    from onceflow.broker.topics.partition import NO_EPOCH as NO_EPOCH, Partition as Partition
    from onceflow.broker.topics.rules import (
        Assignment as Assignment,
        increase_refusal as increase_refusal,
        layout_refusal as layout_refusal,
        name_refusal as name_refusal,
        new_name_refusal as new_name_refusal,
        own_topic_difference as own_topic_difference,
        own_topic_refusal as own_topic_refusal,
        partition_count as partition_count,
        total_refusal as total_refusal,
    )
    from onceflow.broker.topics.topics import (
        Topic as Topic,
        TopicNames as TopicNames,
        Topics as Topics,
    )
    from onceflow.broker.topics.turns import Steps as Steps, Turns as Turns
else:
    __getattr__ = door(
        __name__,
        {
            "internal_logs": "OFFSETS_TOPIC POLICIES TRANSACTIONS_TOPIC",
            "internal_topic": "OwnTopic Unapplied",
            "metadata_log": "METADATA_LOG METADATA_TOPIC log_batches log_records",
            "partition": "NO_EPOCH Partition",
            "rules": "Assignment increase_refusal layout_refusal name_refusal "
            "new_name_refusal own_topic_difference own_topic_refusal "
            "partition_count total_refusal",
            "topics": "Topic TopicNames Topics",
            "turns": "Steps Turns",
        },
    )
