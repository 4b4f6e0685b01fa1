"""The broker's settings while it runs: altered, kept over a crash, taken over by topics; and as
they are described."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config import describe as broker_configs
from onceflow.broker.config.describe import describe_broker
from onceflow.broker.config.live import ALL_BROKERS, ALTERABLE, BrokerSettings
from onceflow.broker.config.settings import BrokerConfig
from onceflow.broker.config.topic_config import Alteration, ConfigEntry, ConfigSource, Operation
from onceflow.broker.requests.refusal import RequestRefusal
from onceflow.testing.world import World, run as simulate
from onceflow.wire.api import ApiKey
from tests.unit.broker.broker_under_test import RawClient, Running, batch, play, simulated_broker
from tests.unit.broker.txn.transactional_requests import LEFT_BY, again

HERE, TOPIC, BROKER = "1", 2, 4


async def alter(
    client: RawClient,
    name: str,
    *pairs: tuple[str, str | None],
    anew: bool = False,
    validate_only: bool = False,
) -> str:
    """SET for each pair, DELETE for each null; the code."""
    configs: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in pairs]
    if not anew:
        for each in configs:
            each["config_operation"] = Operation.SET if each["value"] else Operation.DELETE
    row = {"resource_type": BROKER, "resource_name": name, "configs": configs}
    key = ApiKey.ALTER_CONFIGS if anew else ApiKey.INCREMENTAL_ALTER_CONFIGS
    fields = {"resources": [row], "validate_only": validate_only}
    answer = await client.ask(key, 2 if anew else 1, fields)
    return str(answer["responses"][0]["error_code"])


async def told(client: RawClient, kind: int, name: str, key: str) -> tuple[str | None, int]:
    """A config's value, and where that comes from."""
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    answer = await client.ask(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [row]})
    (found,) = answer["results"][0]["configs"]
    return found["value"], found["config_source"]


def segment_ms(running: Running, topic: str) -> int:
    return running.server.node.topics.by_name[topic].partitions[0].log.config.segment_ms


@pytest.mark.parametrize("left", LEFT_BY)
def test_what_was_altered_holds_over_a_crash(left: str) -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world) as running:
            client = await running.client()
            await client.create("plain")
            await client.create("own", segment_ms="7")
            changes = (("log.roll.ms", "5"), ("max.connections", "9"))
            assert await alter(client, ALL_BROKERS, *changes) == "NONE"
            assert await alter(client, HERE, ("log.roll.ms", "6")) == "NONE"
            assert [segment_ms(running, each) for each in ("plain", "own")] == [6, 7]
            image = LEFT_BY[left](world.disk)
        async with again(world, image) as (running, client):
            assert await told(client, BROKER, HERE, "log.roll.ms") == ("6", 2)
            assert await told(client, BROKER, HERE, "max.connections") == ("9", 3)
            assert await told(client, TOPIC, "plain", "segment.ms") == ("6", 2)
            assert [segment_ms(running, each) for each in ("plain", "own")] == [6, 7]
            assert running.server.node.config.max_connections == 9
            await client.create("later")
            assert segment_ms(running, "later") == 6
            assert await alter(client, HERE, ("log.roll.ms", None)) == "NONE"
            assert segment_ms(running, "plain") == 5
            assert await alter(client, ALL_BROKERS, anew=True) == "NONE"
            assert segment_ms(running, "plain") == 7 * 24 * 3_600_000
            image = LEFT_BY[left](image)
        async with again(world, image, host="third") as (running, client):
            assert await told(client, BROKER, HERE, "log.roll.ms") == (None, 5)
            assert await told(client, BROKER, HERE, "log.roll.hours") == ("168", 5)
            assert running.server.node.config.max_connections == 1000

    simulate(1, main)


def test_what_is_only_looked_at_or_refused_changes_nothing() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("plain")
        before = segment_ms(running, "plain")
        assert await alter(client, HERE, ("log.roll.ms", "5"), validate_only=True) == "NONE"
        good, bad = ("log.roll.ms", "5"), ("num.partitions", "4")
        assert await alter(client, HERE, good, bad) == "INVALID_REQUEST"
        assert await alter(client, HERE, good, ("max.connections", "0")) == "INVALID_REQUEST"
        lags = (
            ("log.cleaner.min.compaction.lag.ms", "6"),
            ("log.cleaner.max.compaction.lag.ms", "5"),
        )
        assert await alter(client, HERE, good, *lags) == "INVALID_REQUEST"
        assert await alter(client, HERE, lags[0]) == "NONE"
        assert await alter(client, ALL_BROKERS, lags[1]) == "INVALID_REQUEST", "not with the other"
        assert await alter(client, "2", good) == "INVALID_REQUEST"
        assert segment_ms(running, "plain") == before

    play(script)


def test_on_a_full_disk_it_is_altered_or_refused_and_nothing_between() -> None:
    async def main(world: World) -> None:
        async with simulated_broker(world, reserve_bytes=1 << 20) as running:
            client = await running.client()
            await client.create("plain")
            before = segment_ms(running, "plain")
            world.disk.capacity = 0
            answer = await client.produce("plain", batch(b"x" * 1000))
            assert answer["error_code"] == "KAFKA_STORAGE_ERROR"
            code = await alter(client, HERE, ("log.roll.ms", "5"))
            is_held = bool(running.server.node.settings.altered_of(HERE))
            assert is_held is (code == "NONE"), code
            assert segment_ms(running, "plain") == (5 if is_held else before)
            world.disk.capacity = None

    simulate(1, main)


def test_a_lower_limit_of_connections_holds_for_the_next() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        assert await alter(client, HERE, ("max.connections", "1")) == "NONE"
        other = await running.client()
        await asyncio.sleep(1)
        assert other.is_lost
        assert not client.is_lost
        assert await alter(client, HERE, ("max.connections", None)) == "NONE"
        another = await running.client()
        await asyncio.sleep(1)
        assert not another.is_lost

    play(script)


def test_the_next_look_for_logs_to_compact_is_not_awaited() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("c", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        looks: list[float] = []
        compact = running.server.node.store.compact

        def counted(now_ms: int) -> None:
            looks.append(world.clock.monotonic())
            compact(now_ms)

        running.server.node.store.compact = counted  # type: ignore[method-assign]
        await asyncio.sleep(100)
        assert looks == []
        assert await alter(client, HERE, ("log.cleaner.backoff.ms", "10000")) == "NONE"
        await asyncio.sleep(35)
        assert len(looks) == 3
        for number in range(1, 11):
            await asyncio.sleep(3)
            assert await alter(client, HERE, ("log.roll.ms", str(number))) == "NONE"
        assert len(looks) == 6, "another setting does not put it off"

    play(script, log_cleaner_backoff_ms=24 * 3_600_000)


def test_producers_are_forgotten_by_what_was_altered() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        assert await alter(client, HERE, ("producer.id.expiration.ms", "1234")) == "NONE"
        assert running.server.node._expiry.silent_ms == 1234

    play(script)


def test_what_cannot_be_used_any_more_is_told_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = BrokerSettings(BrokerConfig(data_dir=Path("data")))
    kept = {"log.roll.ms": "5", "log.retention.ms": "soon", "of.a.newer.version": "1"}
    with caplog.at_level(logging.ERROR):
        settings.restore({HERE: kept, "7": {"log.roll.ms": "9"}})
    assert settings.altered_of(HERE) == {"log.roll.ms": "5"}
    assert settings.defaults.find("log.roll.ms") == ("5", ConfigSource.DYNAMIC_BROKER)
    assert len(caplog.records) == 2


def test_settings_that_do_not_go_with_the_new_start_do_not_keep_it_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started = BrokerConfig(
        data_dir=Path("data"), topic_defaults={"log.cleaner.max.compaction.lag.ms": "5"}
    )
    settings = BrokerSettings(started)
    with caplog.at_level(logging.ERROR):
        settings.restore({HERE: {"log.cleaner.min.compaction.lag.ms": "6"}})
    assert settings.config == started
    assert "not used" in caplog.text


def test_settings_that_are_allowed_only_together_are_all_there_after_a_restart() -> None:
    """Whichever is read first: the other one makes it good. Others stay in any case."""
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    started = BrokerConfig(data_dir=Path("data"), topic_defaults={most: "5"})
    settings = BrokerSettings(started)
    settings.restore({HERE: {"log.roll.ms": "7", least: "6"}, ALL_BROKERS: {most: "10"}})
    assert settings.altered_of(HERE) == {"log.roll.ms": "7", least: "6"}
    assert settings.altered_of(ALL_BROKERS) == {most: "10"}
    settings = BrokerSettings(started)
    settings.restore({HERE: {"log.roll.ms": "7", least: "6"}})
    assert settings.altered_of(HERE) == {"log.roll.ms": "7"}


def test_a_list_grows_from_what_holds_under_that_name() -> None:
    name = "log.cleanup.policy"
    settings = BrokerSettings(BrokerConfig(data_dir=Path("data")))
    settings.apply(HERE, {name: "compact"})
    more = [Alteration(name, Operation.APPEND, "delete")]
    assert settings.decide(HERE, more, anew=False) == {name: "compact,delete"}
    assert settings.decide(ALL_BROKERS, more, anew=False) == {name: "delete"}
    settings.apply(ALL_BROKERS, {name: "compact,delete"})
    less = [Alteration(name, Operation.SUBTRACT, "compact")]
    assert settings.decide(ALL_BROKERS, less, anew=False) == {name: "delete"}
    assert settings.decide(HERE, less, anew=False) == {name: ""}


def test_a_topic_that_goes_with_the_brokers_default_again_takes_it_over() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        await client.create("own", min_compaction_lag_ms="6")
        assert await alter(client, HERE, ("log.cleaner.max.compaction.lag.ms", "5")) == "NONE"
        name = "max.compaction.lag.ms"
        assert await told(client, TOPIC, "own", name) == (str(2**63 - 1), 5), "it would conflict"
        lower = {"name": "min.compaction.lag.ms", "config_operation": Operation.SET, "value": "1"}
        row = {"resource_type": TOPIC, "resource_name": "own", "configs": [lower]}
        answer = await client.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [row], "validate_only": False}
        )
        assert answer["responses"][0]["error_code"] == "NONE"
        assert await told(client, TOPIC, "own", name) == ("5", 2)

    play(script)


@pytest.mark.parametrize(
    ("name", "written", "understood"),
    [
        ("log.roll.ms", " 05 ", "5"),
        ("log.preallocate", "TRUE", "true"),
        ("log.cleanup.policy", "compact , delete", "compact,delete"),
        ("max.connections", " 9", "9"),
    ],
)
def test_a_setting_is_told_as_it_is_understood(name: str, written: str, understood: str) -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        assert await alter(client, HERE, (name, written)) == "NONE"
        assert await told(client, BROKER, HERE, name) == (understood, 2)

    play(script)


def test_who_asks_for_thousands_of_names_gets_no_more_made_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    honest = ConfigEntry

    def entry(name: str, *rest: Any, **more: Any) -> ConfigEntry:
        made.append(name)
        return honest(name, *rest, **more)

    monkeypatch.setattr(broker_configs, "ConfigEntry", entry)
    settings = BrokerSettings(BrokerConfig(data_dir=Path("data")))
    listen = settings.config.listen
    wanted = ["log.dirs", "log.roll.ms", "num.io.threads", "unknown"]
    found = [each.name for each in describe_broker(settings, listen, listen, wanted)]
    assert sorted(found) == sorted(made) == wanted[:3]
    everything = [each.name for each in describe_broker(settings, listen, listen, None)]
    assert len(set(everything)) == len(everything) > 90


@pytest.mark.parametrize("name", sorted(ALTERABLE))
def test_whatever_can_be_altered_takes_its_own_value(name: str) -> None:
    """Each as it is described: no name is offered that is then refused."""
    settings = BrokerSettings(BrokerConfig(data_dir=Path("data")))
    listen = settings.config.listen
    (entry,) = describe_broker(settings, listen, listen, [name])
    assert not entry.read_only
    value = entry.value or "1"
    decided = settings.decide(HERE, [Alteration(name, Operation.SET, value)], anew=False)
    assert not isinstance(decided, RequestRefusal)
    settings.apply(HERE, decided)
    (entry,) = describe_broker(settings, listen, listen, [name])
    assert (entry.value, entry.source) == (value, ConfigSource.DYNAMIC_BROKER)


def test_many_topics_follow_in_turns() -> None:
    async def script(world: World, running: Running, client: RawClient) -> None:
        topics = [f"t{number}" for number in range(40)]
        for topic in topics:
            await client.create(topic, partitions=100)
        assert await alter(client, HERE, ("log.roll.ms", "5")) == "NONE"
        assert {segment_ms(running, each) for each in topics} == {5}

    play(script)
