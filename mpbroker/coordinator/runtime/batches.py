"""Batches that coordinators append: records, also of a producer's transaction, and markers that end one."""

from __future__ import annotations

from typing import Final, NamedTuple

from mpbroker.records.batch import CONTROL_BIT, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTIONAL_BIT
from mpbroker.records.builder import build_transaction_marker
from mpbroker.records.markers import ABORT, COMMIT


class Producer(NamedTuple):
    """The producer whose transaction records belong to."""

    producer_id: int
    epoch: int


NOBODY: Final = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class PartitionBatch(NamedTuple):
    partition: int
    batch: bytes
    record_count: int
    max_timestamp: int
    producer: Producer = NOBODY
    attributes: int = 0


class Marker(NamedTuple):
    """The end of a transaction, written to each of its partitions (Kafka: TxnMarkerEntry)."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


def marker_batch(partition: int, marker: Marker, timestamp: int) -> PartitionBatch:
    data = build_transaction_marker(
        COMMIT if marker.is_commit else ABORT,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=timestamp,
    )
    producer = Producer(marker.producer_id, marker.producer_epoch)
    return PartitionBatch(partition, bytes(data), 1, timestamp, producer, TRANSACTIONAL_BIT | CONTROL_BIT)
