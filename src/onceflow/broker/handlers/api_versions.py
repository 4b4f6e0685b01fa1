"""ApiVersions, versions 0-5: what this broker serves.

Asked in a version that is not served, the answer is in version 0 with UNSUPPORTED_VERSION and the
range of this very API, which is how clients find a common version. Produce is advertised from
version 0 on although 3 is the lowest that is served, as Apache Kafka does: older librdkafka turn
compression off otherwise. From version 5 on a client may say which broker of which cluster it means
to reach; another one answers that it should start again from its bootstrap servers.

Features: `transaction.version` is finalized at 2, so clients that know it use an epoch for each
transaction. Two-phase commit is advertised (InitProducerId 6) only where it is enabled.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kio.schema.api_versions.v4.response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

from onceflow.broker.requests import RequestContext
from onceflow.broker.router import SERVED
from onceflow.wire import ApiKey, ErrorCode
from onceflow.wire.newer.api_versions_v5 import ApiVersionsRequest

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_SOFTWARE_FROM = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_FEATURES_FROM_ZERO = 4
_ADVERTISED_FROM = {ApiKey.PRODUCE: 0}
_INIT_WITHOUT_TWO_PHASE = 5
FINALIZED: Final[Mapping[str, int]] = MappingProxyType({"transaction.version": 2})
"""The features, and the level that each is at for good."""


def handle(node: Node, client: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Lists what is served."""
    names = (request.client_software_name, request.client_software_version)
    if client.version >= _SOFTWARE_FROM and not all(map(_SOFTWARE.fullmatch, names)):
        return _response(ErrorCode.INVALID_REQUEST, (), client.version)
    if _is_misrouted(node, request):
        return _response(ErrorCode.REBOOTSTRAP_REQUIRED, (), client.version)
    two_phase = node.config.transaction_two_phase_commit_enable
    return _response(ErrorCode.NONE, SERVED, client.version, two_phase=two_phase)


def _is_misrouted(node: Node, request: ApiVersionsRequest) -> bool:
    """Whether the client took this broker for another one; it may not know which one it wants."""
    if request.cluster_id is None or request.node_id < 0:
        return False
    meant = (request.cluster_id, request.node_id)
    return meant != (node.topics.cluster_id, node.config.node_id)


def unsupported() -> ApiVersionsResponse:
    """The answer to a version that is not served."""
    return _response(ErrorCode.UNSUPPORTED_VERSION, (ApiKey.API_VERSIONS,), 0)


def _response(
    error: ErrorCode, keys: Container[ApiKey], version: int, *, two_phase: bool = False
) -> ApiVersionsResponse:
    # An older answer cannot contain a feature whose lowest level is 0.
    supported = FINALIZED if version >= _FEATURES_FROM_ZERO else {}
    unadvertised = {} if two_phase else {ApiKey.INIT_PRODUCER_ID: _INIT_WITHOUT_TWO_PHASE}
    return ApiVersionsResponse(
        error_code=error,
        api_keys=tuple(
            ApiVersion(
                api_key=int(key),
                min_version=_ADVERTISED_FROM.get(key, versions.lowest),
                max_version=unadvertised.get(key, versions.highest),
            )
            for key, versions in SERVED.items()
            if key in keys
        ),
        throttle_time=timedelta(0),
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in supported.items()
        ),
        finalized_features_epoch=0,
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FINALIZED.items()
        ),
    )
