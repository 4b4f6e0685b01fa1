"""The broker: requests in, answers out. One event loop owns all of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.broker.config import (
        ListenAddress as ListenAddress,
        example_toml as example_toml,
        load_config as load_config,
    )
    from onceflow.broker.embedded import (
        Broker as Broker,
        BrokerEnded as BrokerEnded,
        BrokerMisused as BrokerMisused,
        BrokerNotStarted as BrokerNotStarted,
    )
    from onceflow.broker.main import run as run
    from onceflow.broker.server import Runtime as Runtime, Server as Server
else:
    __getattr__ = door(
        __name__,
        {
            "config": "ListenAddress example_toml load_config",
            "embedded": "Broker BrokerEnded BrokerMisused BrokerNotStarted",
            "main": "run",
            "server": "Runtime Server",
        },
    )
