"""Numbers in requests and records that stand for something and that no message schema gives a name.

(Kafka: ConfigResource.Type, DeleteRecordsRequest, ListOffsetsRequest; KIP-734, KIP-405, KIP-1005, KIP-1023
for the timestamps.)
"""

from __future__ import annotations

from enum import IntEnum


class ResourceType(IntEnum):
    """Whose settings are meant."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs does to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# The offset of DeleteRecords that stands for all that can be read.
HIGH_WATERMARK = -1

# Timestamps of ListOffsets that ask for an offset by its meaning.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
