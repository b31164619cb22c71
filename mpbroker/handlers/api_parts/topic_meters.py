"""Counters per topic of produces, fetches and record conversions (Kafka: BrokerTopicStats, ReplicaManager).

The native produce path and the log process count their own work: see metering.pxd and answers.pyx.
"""

from __future__ import annotations

from mpbroker.handlers.produce.slow_appends import Append
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.meters import ApiHistogram, Meters, TopicMeter
from mpbroker.ipc.slots import Batch
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.errors import MESSAGE_TOO_LARGE, Fault, InvalidRecords

# Errors that do not count as failed requests (ReplicaManager.appendRecordsToLeader, readFromLog).
EXPECTED_OF_PRODUCE = {
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
}
EXPECTED_OF_FETCH = {
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.OFFSET_OUT_OF_RANGE,
}
METER_OF_FAULT = {
    Fault.NO_KEY_COMPACTED: TopicMeter.NO_KEY_COMPACTED,
    Fault.INVALID_MAGIC: TopicMeter.INVALID_MAGIC,
    Fault.INVALID_CRC: TopicMeter.INVALID_CRC,
    Fault.INVALID_OFFSET_OR_SEQUENCE: TopicMeter.INVALID_OFFSET_OR_SEQUENCE,
}


def partition_checked(
    meters: Meters,
    version: int,
    image: PartitionImage,
    size: int,
    found: Append | ErrorCode | InvalidRecords,
    spent_ns: int,
) -> None:
    """Count a partition of a produce request after its check. `size` is the bytes of records received."""

    def count(meter: int, amount: int = 1) -> None:
        meters.topic(image.slot, image.slot_generation, meter, amount)

    count(TopicMeter.TOTAL_PRODUCE)
    if isinstance(found, Append):
        if found.batch.rebuilt:
            count(TopicMeter.PRODUCE_CONVERSIONS, found.batch.record_count)
            meters.request(ApiKey.PRODUCE, version, ApiHistogram.CONVERSION_NS, spent_ns)
        if found.batch.decompressed_bytes:
            used = found.batch.decompressed_bytes
            meters.request(ApiKey.PRODUCE, version, ApiHistogram.TEMPORARY_BYTES, used)
        return
    code = found.code if isinstance(found, InvalidRecords) else found
    if code == MESSAGE_TOO_LARGE:
        count(TopicMeter.BYTES_REJECTED, size)
    if code not in EXPECTED_OF_PRODUCE:
        count(TopicMeter.FAILED_PRODUCE)
    if isinstance(found, InvalidRecords) and found.fault in METER_OF_FAULT:
        count(METER_OF_FAULT[found.fault], found.faults)


def batch_appended(meters: Meters, batch: Batch) -> None:
    """Count a batch's error, if any, after the append. The log process itself counts appended batches."""
    if batch.error not in EXPECTED_OF_PRODUCE:
        meters.topic(batch.slot, batch.slot_generation, TopicMeter.FAILED_PRODUCE)


def partition_fetched(meters: Meters, topic: Topic, partition: int, error: int, size: int) -> None:
    """Count a partition of an answered fetch. `size` is the bytes of its records."""
    image = topic.partitions.get(partition)
    if image is None:
        return
    meters.topic(image.slot, image.slot_generation, TopicMeter.TOTAL_FETCH)
    if size:
        meters.topic(image.slot, image.slot_generation, TopicMeter.BYTES_OUT, size)
    if error not in EXPECTED_OF_FETCH:
        meters.topic(image.slot, image.slot_generation, TopicMeter.FAILED_FETCH)
