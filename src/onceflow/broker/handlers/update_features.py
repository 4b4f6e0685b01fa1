"""UpdateFeatures, versions 0-2: `transaction.version` is finalized at 2, and stays there.

To ask for what is so already is answered with NONE, anything else with INVALID_UPDATE_VERSION, and
then nothing is updated. Unlike in Apache Kafka no feature can be taken down to an earlier version:
clients that have begun to use it would be cut off in the midst of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.update_features.v1.response import (
    UpdatableFeatureResult,
    UpdateFeaturesResponse,
)
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest

from onceflow.broker.handlers.api_versions import FINALIZED
from onceflow.broker.requests import RequestContext, RequestRefused
from onceflow.wire import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker.node import Node

_UPGRADE_TYPES = range(1, 4)


def handle(
    node: Node, client: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Updates nothing, and says whether that is what was asked for."""
    for update in request.feature_updates:
        if reason := _problem(update):
            message = (
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.max_version_level} for feature "
                f"{update.feature}. {reason}"
            )
            return _response(RequestRefused(ErrorCode.INVALID_UPDATE_VERSION, message), ())
    return _response(RequestRefused(ErrorCode.NONE), request.feature_updates)


def _problem(update: FeatureUpdateKey) -> str | None:
    level = FINALIZED.get(update.feature)
    if level is None:
        return f"There is no such feature here; there is {', '.join(FINALIZED)}."
    if update.upgrade_type not in _UPGRADE_TYPES:
        return f"There is no upgrade type {update.upgrade_type}; there are 1 to 3."
    if update.max_version_level != level:
        return f"It is finalized at {level}, and stays there."
    return None


def _response(
    refused: RequestRefused, updated: Iterable[FeatureUpdateKey]
) -> UpdateFeaturesResponse:
    """As version 1 has it, where each feature has a result of its own; version 2 leaves it out."""
    return UpdateFeaturesResponse(
        throttle_time=timedelta(0),
        error_code=refused.code,
        error_message=refused.message,
        results=tuple(
            UpdatableFeatureResult(
                feature=each.feature, error_code=ErrorCode.NONE, error_message=ErrorCode.NONE.name
            )
            for each in updated
        ),
    )
