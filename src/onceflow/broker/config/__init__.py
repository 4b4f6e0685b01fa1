"""The settings of the broker and its topics: parsed, checked, described and altered as in Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.config.config import PREFIX as PREFIX, load_config as load_config
    from onceflow.broker.config.describe import (
        describe_all_brokers as describe_all_brokers,
        describe_broker as describe_broker,
    )
    from onceflow.broker.config.example import example_toml as example_toml
    from onceflow.broker.config.live import (
        ALL_BROKERS as ALL_BROKERS,
        BrokerSettings as BrokerSettings,
    )
    from onceflow.broker.config.settings import (
        BrokerConfig as BrokerConfig,
        ListenAddress as ListenAddress,
    )
    from onceflow.broker.config.topic_config import (
        Alteration as Alteration,
        ConfigEntry as ConfigEntry,
        Operation as Operation,
        TopicConfig as TopicConfig,
        altered as altered,
        config_of_new_topic as config_of_new_topic,
        replaced as replaced,
        usable_config as usable_config,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "config": "PREFIX load_config",
            "describe": "describe_all_brokers describe_broker",
            "example": "example_toml",
            "live": "ALL_BROKERS BrokerSettings",
            "settings": "BrokerConfig ListenAddress",
            "topic_config": "Alteration ConfigEntry Operation TopicConfig altered "
            "config_of_new_topic replaced usable_config",
        },
    )
