"""A configuration file with every setting of the broker: its meaning, its type and its default."""

from __future__ import annotations

from typing import Final

from onceflow.broker.config.settings import SETTINGS
from onceflow.broker.config.topic_settings import DEFAULTS
from onceflow.settings import example_lines, wrapped_comment

_HEAD: Final = (
    "Settings of the Onceflow broker, for `onceflow serve --config FILE`. What is commented out "
    "shows the default; only data.dir has none. Options of the command and variables of the "
    "environment (ONCEFLOW_DATA_DIR) win over this file."
)
_TOPICS: Final = (
    "--- Defaults of topic configs: a topic's own config wins. Those of other units are there for "
    "the sake of Apache Kafka's names; of several the finest unit wins."
)


def example_toml() -> str:
    """As it is, it starts a broker with all defaults."""
    own, of_topics = (example_lines(each.values()) for each in (SETTINGS, DEFAULTS))
    return "\n".join((*wrapped_comment(_HEAD), *own, "", *wrapped_comment(_TOPICS), *of_topics, ""))
