"""Numbers in requests and records that have a special meaning, for which the message schema has no names.

(Kafka: ConfigResource.Type, DeleteRecordsRequest, ListOffsetsRequest; KIP-734, KIP-405, KIP-1005, KIP-1023
for the timestamps.)
"""

from __future__ import annotations

from enum import IntEnum

from mpbroker.protocol.api_keys import ApiKey


class ConfigResourceType(IntEnum):
    """The kinds of resources that have settings (DescribeConfigs, IncrementalAlterConfigs)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """The operations that IncrementalAlterConfigs can apply to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# The offset that has DeleteRecords delete everything below the high watermark.
HIGH_WATERMARK = -1

# Timestamps with which ListOffsets asks for a special offset.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

# Levels of isolation in Fetch and ListOffsets. (Kafka: IsolationLevel)
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

# Requests that wait for other members of a group, perhaps for half an hour.
WAIT_FOR_OTHERS = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
# From this version of JoinGroup on, who joins without a member id is answered at once, with an id (KIP-394).
FIRST_VERSION_WITH_REQUIRED_ID = 4
