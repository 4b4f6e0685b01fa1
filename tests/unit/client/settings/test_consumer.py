"""The settings of a consumer: Kafka's defaults, and contradictions that name both keys."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.client.settings.consumer import ConsumerSettings
from onceflow.errors import InvalidSetting


def test_defaults_are_kafkas_except_for_the_isolation() -> None:
    made = ConsumerSettings.of(group_id="g")
    assert made.enable_auto_commit
    assert made.auto_commit_interval_ms == 5000
    assert made.auto_offset_reset == "latest"
    assert made.max_poll_records == 500
    assert (made.max_poll_interval_ms, made.session_timeout_ms) == (300_000, 45_000)
    assert made.heartbeat_interval_ms == 3000
    assert made.partition_assignment_strategy == ("range", "cooperative-sticky")
    assert made.isolation_level == "read_committed"


def test_without_a_group_nothing_is_committed_by_itself() -> None:
    assert not ConsumerSettings.of().enable_auto_commit


@pytest.mark.parametrize(
    ("given", "names", "cooperative"),
    [
        ("range", ("range",), False),
        (" roundrobin , range", ("roundrobin", "range"), False),
        (["cooperative-sticky"], ("cooperative-sticky",), True),
        (("range", "cooperative-sticky"), ("range", "cooperative-sticky"), False),
    ],
)
def test_strategies(given: Any, names: tuple[str, ...], cooperative: bool) -> None:
    made = ConsumerSettings.of(partition_assignment_strategy=given)
    assert made.partition_assignment_strategy == names
    assert tuple(each.name for each in made.assignors) == names
    assert made.is_cooperative is cooperative


@pytest.mark.parametrize("given", ["", "sticky", "range,range", [], ["range", 7], 7])
def test_strategies_that_are_none(given: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"partition\.assignment\.strategy .*roundrobin"):
        ConsumerSettings.of(partition_assignment_strategy=given)


@pytest.mark.parametrize(
    ("delivery", "automatic", "before"),
    [("at-least-once", True, False), ("at-most-once", False, True)],
)
def test_delivery_in_one_word(delivery: str, automatic: bool, before: bool) -> None:
    made = ConsumerSettings.of(group_id="g", delivery=delivery)
    assert (made.enable_auto_commit, made.commits_before) == (automatic, before)


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"group.instance.id": "i"}, ("group.instance.id", "group.id")),
        ({"enable.auto.commit": True}, ("enable.auto.commit = true", "group.id, which is not set")),
        ({"delivery": "at-most-once"}, ("delivery", "group.id")),
        (
            {"group.id": "g", "delivery": "at-most-once", "enable.auto.commit": True},
            ("delivery = 'at-most-once'", "enable.auto.commit = true"),
        ),
        (
            {"group.id": "g", "delivery": "at-least-once", "enable.auto.commit": False},
            ("delivery = 'at-least-once'", "enable.auto.commit = false"),
        ),
        (
            {"heartbeat.interval.ms": 6000, "session.timeout.ms": 6000},
            ("heartbeat.interval.ms = 6000", "session.timeout.ms = 6000"),
        ),
        (
            {"fetch.max.wait.ms": 40_000},
            ("fetch.max.wait.ms = 40000", "request.timeout.ms = 30000 (by default)"),
        ),
    ],
)
def test_contradictions_name_both_keys(settings: dict[str, Any], keys: tuple[str, str]) -> None:
    with pytest.raises(InvalidSetting) as told:
        ConsumerSettings.of(settings)
    for key in keys:
        assert key in str(told.value)


def test_a_setting_of_a_producer_is_none_of_a_consumer() -> None:
    with pytest.raises(InvalidSetting, match=r"unknown setting 'linger\.ms'"):
        ConsumerSettings.of(linger_ms=5)
