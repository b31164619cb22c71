"""ApiVersions (key 18), versions 0-4: which APIs in which versions this broker serves.

A version that is not known is answered in version 0 with UNSUPPORTED_VERSION and this API's own range; a
malformed name or version of the client software (v3+) with INVALID_REQUEST. (Kafka: ApiVersionsRequest,
ApiVersionManager; KIP-511, KIP-584.)
"""

from __future__ import annotations

import re

from mpbroker.handlers.apis import api
from mpbroker.handlers.exchange import Exchange
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ApiVersionsResponse

OLDEST, LATEST = 0, 4
FIRST_VERSION_WITH_SOFTWARE = 3

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def failed(_exchange: Exchange, code: ErrorCode) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=code)


def unsupported() -> ApiVersionsResponse:
    """The answer, in version 0, to a version that is not served."""
    own = ApiVersionsResponse.ApiVersion(ApiKey.API_VERSIONS, OLDEST, LATEST)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])


@api(ApiKey.API_VERSIONS, OLDEST, LATEST, name="ApiVersions", failed=failed)
def handle(exchange: Exchange) -> ApiVersionsResponse:
    """Which APIs in which versions the broker serves."""
    request = exchange.body
    if exchange.version >= FIRST_VERSION_WITH_SOFTWARE and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(a.key, a.advertised_from, a.latest)
            for a in exchange.broker.apis.values()
        ]
    )
