"""Where Onceflow's broker answers otherwise than Apache Kafka, on purpose, each with its reason."""

from __future__ import annotations

from typing import Final

from tests.interop.broker.raw.compressed_frames import UNREAD_HERE
from tests.interop.harness import KnownDifference

TOPIC_IDS = "offsets by topic id, of version 10, are not served"
OF_KAFKA_4_4 = "the version came with Apache Kafka 4.4, and the broker of these tests is older"
ELIGIBLE_LEADERS = "Apache Kafka keeps min.insync.replicas as a setting of the cluster since ELR"
BELOW_THE_START = "Apache Kafka names a record that was deleted; ours looks at those that are left"
WHOLE_BATCHES = "only whole batches are sent; Apache Kafka fills up with a part that nobody can use"
NO_FAULT_OF_OURS = "what the client did wrong is told as such, not as a fault of the server"
TOO_LATE_TO_COMMIT = (
    "whose transaction was aborted in the meantime is shut out, as by Apache Kafka's later "
    "versions; 4.3 says that the state is wrong"
)
THE_BROKERS_OWN = (
    "by the number of partitions and the policy of these topics the broker finds its groups and "
    "transactions again: they are fixed, and nobody else writes there"
)
ASKED_EACH_TIME = "the transaction's name counts in every request, not in its first one only"
NOT_AS_WRITTEN = "a checksum that is there is checked, and every byte belongs to the records"
TAKEN_OVER = "what was open is aborted by the time of the answer, which need not be asked for again"
ONE_LEVEL = "a feature stays at its level: who has begun to use it would be cut off"
NOT_ALTERED = "what nothing would come of is refused, not taken in silence"
BOTH_DEFAULTS: Final = [
    {"name": "min.insync.replicas", "value": "1", "source": 3},
    {"name": "min.insync.replicas", "value": "1", "source": 5},
]

KNOWN_DIFFERENCES: Final[tuple[KnownDifference, ...]] = (
    KnownDifference("served_versions", "OFFSET_COMMIT 1", 10, 9, TOPIC_IDS),
    KnownDifference("served_versions", "OFFSET_FETCH 1", 10, 9, TOPIC_IDS),
    KnownDifference("served_versions", "API_VERSIONS 1", 4, 5, OF_KAFKA_4_4),
    KnownDifference("served_versions", "DELETE_GROUPS 1", 2, 3, OF_KAFKA_4_4),
    KnownDifference("odd_requests", "ApiVersions v99 api_keys 0 max_version", 4, 5, OF_KAFKA_4_4),
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
    KnownDifference("fetch_at_the_edges", "partition_max_bytes 300, size", 300, 289, WHOLE_BATCHES),
    KnownDifference("fetch_at_the_edges", "partition_max_bytes 600, size", 600, 578, WHOLE_BATCHES),
    KnownDifference("fetch_at_the_edges", "partition_max_bytes 700, size", 700, 578, WHOLE_BATCHES),
    KnownDifference(
        "configs",
        "alter ('retention.ms', 9, '1') error_code",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_REQUEST",
        NO_FAULT_OF_OURS,
    ),
    KnownDifference(
        "refuses_broken_batches",
        "unknown codec error_code",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_RECORD",
        NO_FAULT_OF_OURS,
    ),
    KnownDifference(
        "administration_of_own_topics",
        "grow __* results 0 error_code",
        "NONE",
        "INVALID_TOPIC_EXCEPTION",
        THE_BROKERS_OWN,
    ),
    KnownDifference(
        "administration_of_own_topics",
        "alter __* responses 0 error_code",
        "NONE",
        "INVALID_TOPIC_EXCEPTION",
        THE_BROKERS_OWN,
    ),
    KnownDifference(
        "writing_to_own_topics",
        "an administrator writes to __consumer_offsets",
        "NONE",
        "INVALID_TOPIC_EXCEPTION",
        THE_BROKERS_OWN,
    ),
    KnownDifference(
        "writing_to_own_topics",
        "a broker adds __*, verify_only=False 0",
        "NONE",
        "TOPIC_AUTHORIZATION_FAILED",
        THE_BROKERS_OWN,
    ),
    KnownDifference(
        "writing_to_own_topics",
        "a stranger's marker in __transaction_state 0 2",
        "NONE",
        "INVALID_TOPIC_EXCEPTION",
        "no transaction is ever open there",
    ),
    KnownDifference(
        "odd_markers",
        "producer * epoch * coordinator * 0 2",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_REQUEST",
        NO_FAULT_OF_OURS,
    ),
    KnownDifference(
        "endings",
        "v5 after commit=False: commit=True by the old epoch error_code",
        "INVALID_TXN_STATE",
        "PRODUCER_FENCED",
        TOO_LATE_TO_COMMIT,
    ),
    KnownDifference(
        "timeouts",
        "v5 commit ? error_code",
        "INVALID_TXN_STATE",
        "PRODUCER_FENCED",
        TOO_LATE_TO_COMMIT,
    ),
    KnownDifference(
        "offset_refusals",
        "v5 added=True commit, an unknown name 0",
        "NONE",
        "INVALID_PRODUCER_ID_MAPPING",
        ASKED_EACH_TIME,
    ),
    KnownDifference(
        "offset_refusals",
        "v5 added=True commit, an empty name 0",
        "NONE",
        "INVALID_REQUEST",
        ASKED_EACH_TIME,
    ),
    KnownDifference(
        "fencing", "v? while open error_code", "CONCURRENT_TRANSACTIONS", "NONE", TAKEN_OVER
    ),
    KnownDifference("fencing", "v4 while open producer_id", -1, "<producer 0>", TAKEN_OVER),
    KnownDifference("fencing", "v5 while open producer_id", -1, "<producer 1>", TAKEN_OVER),
    KnownDifference("fencing", "v? while open producer_epoch", -1, 3, TAKEN_OVER),
    # The script asks again in any case, and so is one epoch further with us.
    KnownDifference("fencing", "v? epochs between", 2, 3, TAKEN_OVER),
    KnownDifference("fencing", "state producer_epoch", 3, 4, TAKEN_OVER),
    KnownDifference("coordinators", "TXN_OFFSET_COMMIT max_version", 5, 6, OF_KAFKA_4_4),
    *(
        KnownDifference(
            "features",
            f"{version} lower, knowingly error_code",
            "NONE",
            "INVALID_UPDATE_VERSION",
            ONE_LEVEL,
        )
        for version in ("v1", "v2")
    ),
    KnownDifference(
        "features",
        "v1 lower, knowingly results",
        [{"feature": "transaction.version", "error_code": "NONE", "error_message": "<message>"}],
        [],
        ONE_LEVEL,
    ),
    *(
        KnownDifference(
            "odd_alterations",
            f"{label} responses 0 error_code",
            "NONE",
            "INVALID_REQUEST",
            NOT_ALTERED,
        )
        for label in ("too small", "anew: too small", "unknown", "anew: unknown")
    ),
    *(
        KnownDifference("takes_frames", label, "taken", "refused", NOT_AS_WRITTEN)
        for label in UNREAD_HERE
    ),
)
