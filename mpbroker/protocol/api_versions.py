"""Builds the answer to an ApiVersions request, for handlers and processors.

(Kafka: ApiVersionsRequest, ApiVersionManager; KIP-511, KIP-584 for features.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.features import FINALIZED, SUPPORTED, oldest_level
from mpbroker.protocol.messages import ApiVersionsRequest, ApiVersionsResponse

OLDEST, LATEST = 0, 4
FIRST_VERSION_WITH_SOFTWARE = 3
# Older clients stop at a feature whose lowest level is 0; Kafka hides those from them, too.
FIRST_VERSION_WITH_LEVEL_0 = 4

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


# An API that the broker serves, with the versions that clients may use.
Served = ApiVersionsResponse.ApiVersion
_FEATURES = [
    ApiVersionsResponse.SupportedFeatureKey(name, oldest_level(name), level)
    for name, level in SUPPORTED.items()
]
_FINALIZED = [
    ApiVersionsResponse.FinalizedFeatureKey(name, level, level) for name, level in FINALIZED.items()
]
# Clients keep the highest epoch that they have seen, from 0 on: increase it when the finalized levels change.
_FINALIZED_EPOCH = 2


def unsupported() -> ApiVersionsResponse:
    """Return the answer, to be encoded in version 0, to an ApiVersions request of an unsupported version."""
    own = Served(ApiKey.API_VERSIONS, OLDEST, LATEST)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])


def answer(request: ApiVersionsRequest, version: int, served: Iterable[Served]) -> ApiVersionsResponse:
    """Return the answer to a request of this version, with the APIs `served` and the features.

    The answer is INVALID_REQUEST if the name or version of the client's software is malformed (v3+).
    """
    if version >= FIRST_VERSION_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    features = _FEATURES if version >= FIRST_VERSION_WITH_LEVEL_0 else []
    return ApiVersionsResponse(
        api_keys=list(served),
        supported_features=features,
        finalized_features_epoch=_FINALIZED_EPOCH,
        finalized_features=_FINALIZED,
    )
