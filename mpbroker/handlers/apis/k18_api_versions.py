"""ApiVersions (key 18), versions 0-4: the APIs that this broker serves, and their versions.

An unknown version of ApiVersions is answered in version 0 with UNSUPPORTED_VERSION and this API's own range.
A malformed name or version of the client software (v3+) is answered with INVALID_REQUEST. (Kafka:
ApiVersionsRequest, ApiVersionManager; KIP-511, KIP-584.)
"""

from __future__ import annotations

from mpbroker.handlers.apis import api, served
from mpbroker.handlers.context import RequestContext
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.api_versions import LATEST, OLDEST, answer
from mpbroker.protocol.messages import ApiVersionsResponse


@api(ApiKey.API_VERSIONS, OLDEST, LATEST, name="ApiVersions")
def handle(context: RequestContext) -> ApiVersionsResponse:
    """Returns the APIs that the broker serves, and their versions."""
    return answer(context.body, context.version, served(context.broker.config))
