"""Answers of a broker that does not lead, in one table of all APIs.

Such a broker is a standby, or its lease has run out (`ipc/leading.py`). Clients take each refusal as a reason
to look for the leader, the coordinator or the controller, and to try again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from mpbroker.handlers.requests.request import ReceivedRequest
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode


class Instead(Enum):
    """An action in place of an error response."""

    SERVE = 1
    CLOSE = 2  # close the connection: clients repeat the request elsewhere then; after errors they do not


_ANSWERS: Final[dict[ErrorCode | Instead, tuple[ApiKey, ...]]] = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: (
        *(ApiKey.PRODUCE, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DELETE_RECORDS),
        *(ApiKey.WRITE_TXN_MARKERS, ApiKey.DESCRIBE_PRODUCERS),
    ),
    ErrorCode.REPLICA_NOT_AVAILABLE: (ApiKey.ALTER_REPLICA_LOG_DIRS,),
    ErrorCode.NOT_COORDINATOR: (
        *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP),
        *(ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.DESCRIBE_GROUPS),
        *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS),
        *(ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN),
        *(ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN, ApiKey.DESCRIBE_TRANSACTIONS),
    ),
    # An empty list: clients ask every broker, and this one coordinates nothing.
    ErrorCode.NONE: (ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS),
    ErrorCode.NOT_CONTROLLER: (
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ELECT_LEADERS),
        *(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_PARTITION_REASSIGNMENTS),
        ApiKey.UPDATE_FEATURES,
    ),
    # Clients send these to any broker, preferably to one that they are connected to.
    Instead.CLOSE: (
        *(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS),
        *(ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN),
        *(ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.UNREGISTER_BROKER),
    ),
    Instead.SERVE: (
        # `apis/k01_fetch.py` refuses each partition, but on a replica. A client that gets no fetch session
        # may never ask again.
        ApiKey.FETCH,
        *(ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE),
        *(ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_QUORUM),
        *(ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_CONFIGS, ApiKey.LIST_CONFIG_RESOURCES),
        *(ApiKey.DESCRIBE_LOG_DIRS, ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_ACLS),
        *(ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS),
        *(ApiKey.DESCRIBE_DELEGATION_TOKEN, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY),
    ),
}
# A standby learns of topics late, and a client that misses one asks the same broker again while they are
# connected. So the connection is closed: after Metadata, from which clients learn who leads, and in place of
# the other responses, whose errors Java's AdminClient would report.
UNKNOWN_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
ANSWERS_UNKNOWN_TOPIC: Final[Mapping[int, bool]] = {
    ApiKey.METADATA: True,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: False,
    ApiKey.DESCRIBE_CONFIGS: False,
}
WITHOUT_LEADERSHIP: Final = {key: answer for answer, keys in _ANSWERS.items() for key in keys}


def answer_without_leadership(request: ReceivedRequest) -> ErrorCode | Instead:
    """Return the error with which a broker that does not lead answers the request, or what it does instead.

    Raises UnreadableBody if the request is malformed.
    """
    key = ApiKey(request.slot.api_key)
    if key is ApiKey.INIT_PRODUCER_ID and request.body.transactional_id is None:
        # An idempotent producer asks any broker. librdkafka asks another one if the connection is closed, and
        # franz-go fails unless there is an answer before. On NOT_COORDINATOR Java would look for that one.
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return WITHOUT_LEADERSHIP[key]
