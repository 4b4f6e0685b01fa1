"""ApiVersions, versions 0-4: what this broker serves.

Asked in a version that is not served, the answer is in version 0 with UNSUPPORTED_VERSION and the
range of this very API, which is how clients find a common version. Produce is advertised from
version 0 on although 3 is the lowest that is served, as Apache Kafka does: older librdkafka turn
compression off otherwise.

Features: none is finalized, so clients keep to the protocol without them.
"""

from __future__ import annotations

import re
from collections.abc import Container
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.api_versions.v4.response import ApiVersion, ApiVersionsResponse

from onceflow.broker.request import Client
from onceflow.broker.router import SERVED
from onceflow.wire.api import ApiKey
from onceflow.wire.error_code import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_SOFTWARE_FROM = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_ADVERTISED_FROM = {ApiKey.PRODUCE: 0}


def handle(node: Node, client: Client, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Lists what is served."""
    names = (request.client_software_name, request.client_software_version)
    if client.version >= _SOFTWARE_FROM and not all(map(_SOFTWARE.fullmatch, names)):
        return _response(ErrorCode.INVALID_REQUEST, ())
    return _response(ErrorCode.NONE, SERVED)


def unsupported() -> ApiVersionsResponse:
    """The answer to a version that is not served."""
    return _response(ErrorCode.UNSUPPORTED_VERSION, (ApiKey.API_VERSIONS,))


def _response(error: ErrorCode, keys: Container[ApiKey]) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error,
        api_keys=tuple(
            ApiVersion(
                api_key=int(key),
                min_version=_ADVERTISED_FROM.get(key, versions.lowest),
                max_version=versions.highest,
            )
            for key, versions in SERVED.items()
            if key in keys
        ),
        throttle_time=timedelta(0),
        finalized_features_epoch=0,
    )
