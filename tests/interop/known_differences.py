"""Where Onceflow's broker answers otherwise than Apache Kafka, on purpose, each with its reason."""

from __future__ import annotations

from typing import Final

from tests.interop.harness import KnownDifference

TOPIC_IDS = "offsets by topic id, of version 10, are not served"
ELIGIBLE_LEADERS = "Apache Kafka keeps min.insync.replicas as a setting of the cluster since ELR"
BELOW_THE_START = "Apache Kafka names a record that was deleted; ours looks at those that are left"
BOTH_DEFAULTS: Final = [
    {"name": "min.insync.replicas", "value": "1", "source": 3},
    {"name": "min.insync.replicas", "value": "1", "source": 5},
]

KNOWN_DIFFERENCES: Final[tuple[KnownDifference, ...]] = (
    KnownDifference("served_versions", "OFFSET_COMMIT 1", 10, 9, TOPIC_IDS),
    KnownDifference("served_versions", "OFFSET_FETCH 1", 10, 9, TOPIC_IDS),
    KnownDifference(
        "fetch_sessions", "a new session is granted", True, False, "every fetch is a full one"
    ),
    KnownDifference(
        "create_topics_in_every_version",
        "CREATE_TOPICS v? topics 0 configs * config_source",
        3,
        5,
        ELIGIBLE_LEADERS,
    ),
    KnownDifference(
        "every_topic_config", "min.insync.replicas config_source", 3, 5, ELIGIBLE_LEADERS
    ),
    KnownDifference(
        "every_topic_config",
        "min.insync.replicas synonyms",
        BOTH_DEFAULTS,
        BOTH_DEFAULTS[1:],
        ELIGIBLE_LEADERS,
    ),
    KnownDifference(
        "list_offsets_by_time", "cut, max timestamp timestamp", 21, 11, BELOW_THE_START
    ),
    KnownDifference("list_offsets_by_time", "cut, max timestamp offset", 3, 5, BELOW_THE_START),
)
