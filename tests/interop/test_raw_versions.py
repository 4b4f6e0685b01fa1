"""Every served API in every version: the answer decodes to its last byte, and is Apache Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.conftest import Compare
from tests.interop.harness import Names, Transcript
from tests.interop.raw_client import Api, RawConnection
from tests.interop.raw_requests import BENIGN
from tests.interop.raw_world import VERSIONS, World, stable

pytestmark = pytest.mark.interop


def only_mine(api: Api, answer: dict[str, Any], names: Names) -> dict[str, Any]:
    """The answer without what other scripts made on the broker, and what is the broker's own."""
    if api is Api.LIST_GROUPS:
        mine = [row for row in answer["groups"] if names.mine([row["group_id"]])]
        return answer | {"groups": mine}
    if api is Api.API_VERSIONS:
        served = {row["api_key"] for row in answer["api_keys"]}
        assert served >= set(VERSIONS)
        return {"error_code": answer["error_code"], "fields": sorted(answer)}
    return answer


@pytest.mark.parametrize("api", list(Api), ids=lambda api: api.name.lower())
def test_every_version_is_answered_as_apache_kafka_answers_it(api: Api, compare: Compare) -> None:
    def every_version(bootstrap: str, names: Names, transcript: Transcript) -> None:
        lowest, highest = VERSIONS[api]
        with RawConnection(bootstrap) as connection:
            world = World.make(connection, names)
            for version in range(lowest, highest + 1):
                answer = connection.ask(api, version, BENIGN[api](world, version))
                answer = only_mine(api, stable(answer, bootstrap), names)
                transcript.note(f"{api.name} v{version}", answer)

    every_version.__name__ = f"{api.name.lower()}_in_every_version"
    compare(every_version)
