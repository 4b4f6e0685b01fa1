"""Every served API in every version: the answer decodes to its last byte, and is Apache Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.wire.api import ApiKey
from tests.interop.broker.raw.raw_client import RawConnection
from tests.interop.broker.raw.requests import BENIGN
from tests.interop.broker.raw.world import (
    OF_THE_DISK,
    OF_THE_METADATA_LOG,
    VERSIONS,
    World,
    stable,
    without,
)
from tests.interop.harness import Compare, Names, Transcript

pytestmark = pytest.mark.interop

OWN_NUMBERS = {
    ApiKey.DESCRIBE_LOG_DIRS: OF_THE_DISK,
    ApiKey.DESCRIBE_QUORUM: OF_THE_METADATA_LOG,
}


def only_mine(api: ApiKey, answer: dict[str, Any], names: Names) -> dict[str, Any]:
    """The answer without what other scripts made on the broker, and what is the broker's own."""
    if api is ApiKey.LIST_GROUPS:
        mine = [row for row in answer["groups"] if names.mine([row["group_id"]])]
        return answer | {"groups": mine}
    if api is ApiKey.LIST_CONFIG_RESOURCES:
        rows = answer["config_resources"]
        return answer | {
            "config_resources": [row for row in rows if names.mine([row["resource_name"]])]
        }
    if api is ApiKey.API_VERSIONS:
        served = {row["api_key"] for row in answer["api_keys"]}
        assert served >= set(VERSIONS)
        return {"error_code": answer["error_code"], "fields": sorted(answer)}
    return answer


def served_versions(bootstrap: str, names: Names, transcript: Transcript) -> None:
    """The range that a broker says it serves, for each API that Onceflow has."""
    software = {"client_software_name": "raw-probe", "client_software_version": "1.0"}
    with RawConnection(bootstrap) as connection:
        rows = connection.ask(ApiKey.API_VERSIONS, 4, software)["api_keys"]
    ranges = {row["api_key"]: [row["min_version"], row["max_version"]] for row in rows}
    for api in VERSIONS:
        lowest, highest = VERSIONS[api]
        assert ranges[api][0] <= lowest
        assert ranges[api][1] >= highest
        transcript.note(api.name, ranges[api])


def test_what_is_said_to_be_served_is_what_apache_kafka_serves(compare: Compare) -> None:
    compare(served_versions)


@pytest.mark.parametrize("api", list(VERSIONS), ids=lambda api: api.name.lower())
def test_every_version_is_answered_as_apache_kafka_answers_it(
    api: ApiKey, compare: Compare
) -> None:
    def every_version(bootstrap: str, names: Names, transcript: Transcript) -> None:
        lowest, highest = VERSIONS[api]
        with RawConnection(bootstrap) as connection:
            world = World.make(connection, names)
            for version in range(lowest, highest + 1):
                answer = connection.ask(api, version, BENIGN[api](world, version))
                answer = without(OWN_NUMBERS.get(api, frozenset()), answer)
                answer = only_mine(api, stable(answer, bootstrap), names)
                transcript.note(f"{api.name} v{version}", answer)

    every_version.__name__ = f"{api.name.lower()}_in_every_version"
    compare(every_version)
