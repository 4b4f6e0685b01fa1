"""Topic configs made and altered by requests, held against Apache Kafka 4.3.1's answers."""

from __future__ import annotations

import pytest

from onceflow.broker.config.topic_config import (
    Alteration,
    Operation,
    TopicConfig,
    altered,
    config_of_new_topic,
    replaced,
    usable_config,
)
from onceflow.broker.requests.refusal import RequestRefusal
from onceflow.wire.error_codes import ErrorCode


def changed(config: TopicConfig, name: str, operation: int, value: str | None) -> TopicConfig:
    after = altered(config, [Alteration(name, operation, value)])
    assert isinstance(after, TopicConfig)
    return after


def refused(config: TopicConfig, *alterations: tuple[str, int, str | None]) -> RequestRefusal:
    after = altered(config, [Alteration(*each) for each in alterations])
    assert isinstance(after, RequestRefusal)
    return after


def test_a_new_topic_takes_the_last_of_two() -> None:
    config = config_of_new_topic([("retention.ms", "1"), ("retention.ms", "2")], {})
    assert isinstance(config, TopicConfig)
    assert config.retention_ms == 2


def test_a_new_topic_is_refused() -> None:
    assert config_of_new_topic([("nope", None)], {}) == (
        ErrorCode.INVALID_CONFIG,
        "Null value not supported for topic configs: nope",
    )
    assert config_of_new_topic([("nope", "1")], {}) == (
        ErrorCode.INVALID_CONFIG,
        "Unknown topic config name: nope",
    )


def test_set_and_delete() -> None:
    config = changed(TopicConfig.parse({}, {}), "retention.ms", Operation.SET, "7")
    assert config.retention_ms == 7
    config = changed(config, "retention.ms", Operation.DELETE, "x")
    assert config == TopicConfig.parse({}, {})
    assert changed(config, "nope", Operation.DELETE, None) == config


def test_append_and_subtract() -> None:
    config = TopicConfig.parse({}, {})
    for operation, value, policy in (
        (Operation.APPEND, "compact", "delete,compact"),
        (Operation.APPEND, "compact", "delete,compact"),
        (Operation.SUBTRACT, "delete", "compact"),
        (Operation.SUBTRACT, "bogus", "compact"),
        (Operation.SUBTRACT, "compact", ""),
        (Operation.APPEND, " compact , delete", "compact,delete"),
    ):
        config = changed(config, "cleanup.policy", operation, value)
        assert config.overrides["cleanup.policy"] == policy


def test_append_starts_from_the_brokers_default() -> None:
    config = TopicConfig.parse({}, {"log.cleanup.policy": "compact"})
    config = changed(config, "cleanup.policy", Operation.APPEND, "delete")
    assert config.cleanup_policy == ("compact", "delete")


@pytest.mark.parametrize(
    ("alterations", "code", "message"),
    [
        (
            [("retention.ms", 2, "1")],
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            [("nope", 3, "1")],
            ErrorCode.INVALID_CONFIG,
            "Can't SUBTRACT to key nope because its type is not LIST.",
        ),
        ([("nope", 0, "1")], ErrorCode.INVALID_CONFIG, "Unknown topic config name: nope"),
        (
            [("cleanup.policy", 2, "")],
            ErrorCode.INVALID_CONFIG,
            "Configuration 'cleanup.policy' values must not be empty.",
        ),
        (
            [("retention.ms", 0, None)],
            ErrorCode.INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
        (
            [("cleanup.policy", 3, None)],
            ErrorCode.INVALID_REQUEST,
            "Null value not supported for : cleanup.policy",
        ),
        (
            [("retention.ms", 0, "7"), ("retention.ms", 1, None)],
            ErrorCode.INVALID_REQUEST,
            "Error due to duplicate config keys",
        ),
        (
            [("retention.ms", 4, "7")],
            ErrorCode.INVALID_REQUEST,
            "Unknown operation 4 on retention.ms: allowed is 0 to 3",
        ),
        (
            [("retention.ms", 0, "7"), ("segment.bytes", 0, "1")],
            ErrorCode.INVALID_CONFIG,
            "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576",
        ),
    ],
)
def test_an_alteration_is_refused(
    alterations: list[tuple[str, int, str | None]], code: ErrorCode, message: str
) -> None:
    assert refused(TopicConfig.parse({}, {}), *alterations) == RequestRefusal(code, message)


def test_an_alteration_is_judged_with_what_is_set_already() -> None:
    config = TopicConfig.parse({"min.compaction.lag.ms": "10"}, {})
    assert refused(config, ("max.compaction.lag.ms", 0, "5")).code is ErrorCode.INVALID_CONFIG
    both = [
        Alteration("max.compaction.lag.ms", Operation.SET, "5"),
        Alteration("min.compaction.lag.ms", Operation.DELETE, None),
    ]
    after = altered(config, both)
    assert isinstance(after, TopicConfig)
    assert dict(after.overrides) == {"max.compaction.lag.ms": "5"}


# --- what cannot be used --------------------------------------------------------------------------

LAGS = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}


@pytest.mark.parametrize("defaults", [{}, {"log.cleaner.min.compaction.lag.ms": "7"}])
def test_overrides_that_conflict_with_each_other_are_set_aside(defaults: dict[str, str]) -> None:
    config, problem = usable_config(LAGS | {"cleanup.policy": "compact"}, defaults)
    assert problem is not None
    assert config.overrides == {"cleanup.policy": "compact"}
    assert config.unusable == LAGS
    assert not config.to_log_config().compact


def test_what_is_set_aside_counts_again_when_it_fits() -> None:
    config, _ = usable_config(LAGS | {"retention.ms": "never"}, {})
    lower = Alteration("min.compaction.lag.ms", Operation.SET, "1")
    after = altered(config, [lower])
    assert isinstance(after, TopicConfig)
    assert after.overrides == {"min.compaction.lag.ms": "1"}
    assert after.unusable == {"max.compaction.lag.ms": "5", "retention.ms": "never"}
    assert after.keeps_everything
    fits, _ = usable_config({**after.overrides, "max.compaction.lag.ms": "5"}, {})
    assert (fits.max_compaction_lag_ms, fits.keeps_everything) == (5, False)


def test_alterconfigs_forgets_what_was_unusable() -> None:
    config, _ = usable_config(LAGS, {})
    after = replaced(config, [Alteration("retention.ms", Operation.SET, "5")])
    assert isinstance(after, TopicConfig)
    assert (after.unusable, after.keeps_everything) == ({}, False)
