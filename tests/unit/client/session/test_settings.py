"""What a session can be told, what it makes of it, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from onceflow.client.session.settings import SessionSettings
from onceflow.errors import InvalidSetting

GIVEN: dict[str, Any] = {"group.id": "billing", "topics": ["orders"]}


def made(**settings: Any) -> SessionSettings:
    return SessionSettings.of({**GIVEN, **settings})


def test_each_client_is_told_what_concerns_it() -> None:
    found = made(**{"linger.ms": 1, "max.poll.records": 7, "client.id": "me"})
    assert found.consumer == {
        "group.id": "billing",
        "max.poll.records": 7,
        "client.id": "me",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    assert found.producer == {
        "linger.ms": 1,
        "client.id": "me",
        "transactional.id": "billing/0",
    }
    assert found.topics == ("orders",)
    assert found.max_poll_records == 7


def test_defaults() -> None:
    found = made()
    assert (found.commit_interval_ms, found.commit_max_records) == (0, 10_000)
    assert found.dead_letter_topic is None
    assert found.max_poll_records == 500


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "billing/0"),
        ({"instance": "a"}, "billing/a"),
        ({"group.instance.id": "b"}, "billing/b"),
        ({"group.instance.id": "b", "instance": "b"}, "billing/b"),
    ],
)
def test_one_transactional_id_for_a_group_and_instance(settings: dict[str, Any], name: str) -> None:
    assert made(**settings).transactional_id == name


def test_names_of_two_groups_are_never_the_same() -> None:
    """An instance has no slash, so the last one in a name is where its group ends."""
    one = made(**{"group.id": "a/b", "instance": "c"}).transactional_id
    assert one == "a/b/c"
    with pytest.raises(InvalidSetting, match="instance = 'b/c' is not allowed"):
        made(**{"group.id": "a", "instance": "b/c"})
    with pytest.raises(InvalidSetting, match=r"group\.instance\.id = 'b/c'"):
        made(**{"group.id": "a", "group.instance.id": "b/c"})


@pytest.mark.parametrize(
    "topics", ["orders,bills", "orders, bills", ["orders", "bills"], ("orders", "bills")]
)
def test_topics_as_people_write_them(topics: object) -> None:
    assert made(topics=topics).topics == ("orders", "bills")


def test_a_pattern_in_place_of_topics() -> None:
    found = SessionSettings.of(group_id="billing", pattern=re.compile("orders-.*"))
    assert (found.pattern, found.topics) == ("orders-.*", ())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"group.id": None}, "group.id is not set"),
        ({"topics": None}, "topics and pattern: give one of them"),
        ({"pattern": "a.*"}, "topics and pattern: give one of them"),
        ({"topics": []}, "topics = [] is not allowed"),
        ({"topics": ["a", 3]}, "topics = ['a', 3] is not allowed"),
        ({"topics": None, "pattern": "("}, "pattern = '(' is not allowed; it may be a regular"),
        ({"commit.interval.ms": -1}, "commit.interval.ms = -1 is not allowed"),
        ({"comit.interval.ms": 1}, "did you mean 'commit.interval.ms'"),
        ({"ssl.cafil": "x"}, "did you mean 'ssl.cafile'"),
        ({"delivery": "at-least-once"}, "a session is exactly-once"),
        ({"transactional.id": "x"}, "made of group.id and instance"),
        ({"transaction.two.phase.commit.enable": True}, "decides by itself when to commit"),
    ],
)
def test_what_is_wrong_is_told(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        made(**settings)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("settings", "one", "other"),
    [
        ({"enable.auto.commit": True}, "enable.auto.commit = true", "delivery"),
        ({"isolation.level": "read_uncommitted"}, "isolation.level", "delivery"),
        ({"instance": "a", "group.instance.id": "b"}, "instance = 'a'", "group.instance.id = 'b'"),
        (
            {"commit.interval.ms": 5000, "transaction.timeout.ms": 5000},
            "commit.interval.ms = 5000",
            "transaction.timeout.ms = 5000",
        ),
        ({"enable.idempotence": False}, "transactional.id", "enable.idempotence"),
        ({"acks": 1}, "acks", "enable.idempotence"),
    ],
)
def test_a_contradiction_names_both(settings: dict[str, Any], one: str, other: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        made(**settings)
    assert one in str(error.value)
    assert other in str(error.value)
    assert "contradicts" in str(error.value)


def test_a_key_that_is_given_twice() -> None:
    with pytest.raises(InvalidSetting, match=r"'group\.id' and 'group_id' are the same"):
        SessionSettings.of({"group.id": "a", "topics": "b"}, group_id="c")
