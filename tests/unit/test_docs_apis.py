"""docs/APIS.md says what is served, to the version."""

from __future__ import annotations

import re
from pathlib import Path

from onceflow.broker.router import SERVED
from onceflow.broker.topic_settings import SETTINGS

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "APIS.md").read_text()
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (\d+)(?:-(\d+))? \|", re.MULTILINE)


def test_the_table_is_what_the_router_serves() -> None:
    told = {
        int(key): (name, int(low), int(high or low))
        for key, name, low, high in ROW.findall(DOCUMENT)
    }
    served = {
        int(key): ("".join(part.capitalize() for part in key.schema.split("_")), *versions)
        for key, versions in SERVED.items()
    }
    assert told == served


def test_every_topic_config_that_takes_effect_is_named() -> None:
    section = DOCUMENT.partition("## Topic configs")[2].partition("## Limits")[0]
    named = set(re.findall(r"`([a-z.]+)`", section))
    effective = {
        name
        for name, setting in SETTINGS.items()
        if setting.takes_effect and not name.startswith(("internal.", "compression."))
    }
    assert effective <= named
