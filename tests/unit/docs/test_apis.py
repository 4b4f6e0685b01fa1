"""docs/APIS.md says what is served, to the version; the README says how many APIs that is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onceflow.broker.config.live import ALTERABLE
from onceflow.broker.config.topic_settings import BROKER_NAMES, SETTINGS
from onceflow.broker.router import SERVED
from onceflow.wire.api import ApiKey
from tests.interop import known_differences as known

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "APIS.md").read_text()
README = (ROOT / "README.md").read_text()
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


def test_the_readme_counts_what_the_router_serves() -> None:
    (count,) = re.findall(r"(\d+) APIs of the Kafka protocol", README)
    assert int(count) == len(SERVED)
    for name in (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH):
        assert SERVED[name].highest == 9, "the README says that these stop at 9"


RANGE = re.compile(r"(\d+)(?:-(\d+))?")
TOLD = {
    known.TOPIC_IDS: "not 10, which names topics by their ids",
    known.OF_KAFKA_4_4: "the newest client speaks, 4.4.0",
    "every fetch is a full one": "every request is a full one",
    known.ELIGIBLE_LEADERS: "`min.insync.replicas` is told as a default",
    known.BELOW_THE_START: "the largest timestamp is one that is left",
    known.WHOLE_BATCHES: "only whole batches are sent",
    known.NO_FAULT_OF_OURS: "(Kafka: UNKNOWN_SERVER_ERROR)",
    known.TOO_LATE_TO_COMMIT: "is refused with PRODUCER_FENCED; 4.3 says INVALID_TXN_STATE",
    known.THE_BROKERS_OWN: "the broker's own topics are refused",
    "no transaction is ever open there": "`__transaction_state` is refused",
    known.ASKED_EACH_TIME: "the transaction's name counts in every request",
    known.NOT_AS_WRITTEN: "a checksum that is there is checked",
    known.TAKEN_OVER: "A takeover is answered when what was open is aborted",
    known.ONE_LEVEL: "a feature stays where it is",
    known.NOT_ALTERED: "which Kafka takes and forgets",
}
"""By the reason for which answers differ from Apache Kafka's, what the document says of it."""


@pytest.mark.parametrize("reason", sorted({each.reason for each in known.KNOWN_DIFFERENCES}))
def test_every_knowing_difference_is_told(reason: str) -> None:
    assert TOLD[reason] in " ".join(DOCUMENT.split())


def test_every_api_of_apache_kafka_is_served_or_said_not_to_be() -> None:
    section = DOCUMENT.partition("## Not served")[2].partition("## Topic configs")[0]
    rows = [row.split("|")[2] for row in section.splitlines() if row.startswith("| ")][1:]
    unserved = [
        key
        for low, high in RANGE.findall(" ".join(rows))
        for key in range(int(low), int(high or low) + 1)
    ]
    assert sorted([*unserved, *map(int, SERVED)]) == list(range(max(unserved) + 1))


def test_every_broker_config_that_can_be_altered_is_named() -> None:
    section = DOCUMENT.partition("## Broker configs")[2].partition("## Limits")[0]
    named = set(re.findall(r"`([a-z.]+)`", section))
    assert {name for name in ALTERABLE if name not in BROKER_NAMES} <= named


def test_every_topic_config_that_takes_effect_is_named() -> None:
    section = DOCUMENT.partition("## Topic configs")[2].partition("## Limits")[0]
    named = set(re.findall(r"`([a-z.]+)`", section))
    effective = {
        name
        for name, setting in SETTINGS.items()
        if setting.takes_effect and not name.startswith(("internal.", "compression."))
    }
    assert effective <= named
