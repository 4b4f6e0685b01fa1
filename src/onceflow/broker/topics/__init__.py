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
    from onceflow.broker.topics.internal_topic import (
        InternalTopic as InternalTopic,
        Unapplied as Unapplied,
    )
    from onceflow.broker.topics.metadata_log import (
        METADATA_LOG as METADATA_LOG,
        METADATA_TOPIC as METADATA_TOPIC,
        log_batches as log_batches,
        log_records as log_records,
    )
    from onceflow.broker.topics.partition import (
        NO_EPOCH as NO_EPOCH,
        HostedPartition as HostedPartition,
    )
    from onceflow.broker.topics.rules import (
        Assignment as Assignment,
        increase_refusal as increase_refusal,
        internal_topic_refusal as internal_topic_refusal,
        layout_refusal as layout_refusal,
        name_refusal as name_refusal,
        new_name_refusal as new_name_refusal,
        own_topic_difference as own_topic_difference,
        partition_count as partition_count,
        total_refusal as total_refusal,
    )
    from onceflow.broker.topics.topics import (
        HostedTopic as HostedTopic,
        TopicNames as TopicNames,
        Topics as Topics,
    )
    from onceflow.broker.topics.turns import Steps as Steps, Turns as Turns
else:
    __getattr__ = door(
        __name__,
        {
            "internal_logs": "OFFSETS_TOPIC POLICIES TRANSACTIONS_TOPIC",
            "internal_topic": "InternalTopic Unapplied",
            "metadata_log": "METADATA_LOG METADATA_TOPIC log_batches log_records",
            "partition": "HostedPartition NO_EPOCH",
            "rules": "Assignment increase_refusal internal_topic_refusal layout_refusal "
            "name_refusal new_name_refusal own_topic_difference partition_count "
            "total_refusal",
            "topics": "HostedTopic TopicNames Topics",
            "turns": "Steps Turns",
        },
    )
