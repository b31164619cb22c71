"""Versions of requests that both sides speak (Kafka: NodeApiVersions; KIP-35, KIP-511). Sans-I/O."""

from collections.abc import Mapping
from typing import NamedTuple

from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import REQUESTS as _REQUESTS
from mpbroker.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    Message,
    ProduceRequest,
)
from mpbroker.protocol.wire import UnsupportedVersion

SOFTWARE_NAME = "mpbroker"
SOFTWARE_VERSION = "1"

# Later versions name topics by id only, and the users of this client have names. Later versions for
# transactions bump the epoch with each end (KIP-890), see client/transactions.py.
VERSION_CAPS = {
    ApiKey.PRODUCE: 11,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.END_TXN: 4,
}

KEYS = {message: ApiKey(key) for key, message in _REQUESTS.items()}

# The first version of each API in which the client waits for throttle_time_ms by itself (KIP-219); before it
# the broker held the response back. Kafka: AbstractResponse.shouldClientThrottle of each response.
CLIENT_THROTTLES_FROM = {
    ApiKey.PRODUCE: 6,
    ApiKey.FETCH: 8,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 6,
    ApiKey.OFFSET_COMMIT: 4,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.HEARTBEAT: 2,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.DESCRIBE_GROUPS: 2,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.DELETE_TOPICS: 2,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.DESCRIBE_ACLS: 1,
    ApiKey.CREATE_ACLS: 1,
    ApiKey.DELETE_ACLS: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 1,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.CREATE_DELEGATION_TOKEN: 1,
    ApiKey.RENEW_DELEGATION_TOKEN: 1,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 1,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 1,
    ApiKey.DELETE_GROUPS: 1,
}


def client_throttles(key: ApiKey, version: int) -> bool:
    """Return whether the client must wait for throttle_time_ms. In old versions the broker waits instead."""
    return version >= CLIENT_THROTTLES_FROM.get(key, 0)


class VersionRange(NamedTuple):
    """The lowest and the highest version of a request that a node supports."""

    lowest: int
    highest: int


class NodeApiVersions:
    """The versions that one node speaks."""

    def __init__(self, ranges: Mapping[int, VersionRange]) -> None:
        self._ranges = ranges

    def usable(self, key: ApiKey, *, by_id: bool = False) -> int:
        """Return the highest common version. Raises UnsupportedVersion.

        VERSION_CAPS limit the version, unless the request names topics by id (`by_id`).
        """
        ours = valid_versions(key)
        theirs = self._ranges.get(key)
        if theirs is None:
            raise UnsupportedVersion(f"the broker has no {key.name} requests")
        cap = ours[-1] if by_id else VERSION_CAPS.get(key, ours[-1])
        version = min(ours[-1], theirs.highest, cap)
        if version < max(ours[0], theirs.lowest):
            raise UnsupportedVersion(
                f"the broker speaks {key.name} v{theirs.lowest} to v{theirs.highest}, "
                f"this client v{ours[0]} to v{ours[-1]}"
            )
        return version


def names_topics_by_id(request: Message) -> bool:
    """Return whether a Fetch request has each topic's id, so that any version can encode it (KIP-516)."""
    return (
        isinstance(request, FetchRequest)
        and bool(request.topics)
        and all(any(topic.topic_id) for topic in request.topics)
    )


class ApiVersionsTalk:
    """Learns a node's versions by ApiVersions, the first request; asks again if its version is refused."""

    def __init__(self) -> None:
        self.versions: NodeApiVersions | None = None
        self._version = valid_versions(ApiKey.API_VERSIONS)[-1]

    def request(self) -> tuple[int, ApiVersionsRequest]:
        """Return the version to encode the request in, and the request."""
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
        )
        return self._version, request

    def received(self, response: ApiVersionsResponse) -> str | None:
        """Take the response; return a problem or None. Sets `versions` or the next request's version."""
        ranges = {api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys}
        if not response.error_code:
            self.versions = NodeApiVersions(ranges)
            return None
        if response.error_code != ErrorCode.UNSUPPORTED_VERSION or self._version == 0:
            return f"it does not name its versions (ApiVersions failed with error {response.error_code})"
        listed = ranges.get(ApiKey.API_VERSIONS)
        lower = min(listed.highest, self._version) if listed is not None else 0
        # Never ask in the same version again: a broker may refuse a version and list it.
        self._version = lower if 0 <= lower < self._version else 0
        return None


def expects_response(request: object) -> bool:
    """Return whether the request has a response; only Produce with acks=0 has no response."""
    return not (isinstance(request, ProduceRequest) and request.acks == 0)
