"""Builds record batches and transaction markers (Kafka: MemoryRecordsBuilder)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mpbroker.records.batch import (
    BATCH_HEADER_BYTES,
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
)
from mpbroker.records.compression import Codec, compress
from mpbroker.records.record import NewRecord
from mpbroker.records.stream import RecordWriter, seal

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CONTROL_KEY: Final = struct.Struct(">hh")
"""The key of a control record: version and type (Kafka: ControlRecordType)."""
_END_TRANSACTION_VALUE: Final = struct.Struct(">hi")
"""The value of a transaction marker: version and coordinator epoch (Kafka: EndTransactionMarker)."""


def build_batch(
    records: Iterable[NewRecord],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    append_time: int | None = None,
) -> bytearray:
    """Return one batch of the records, with consecutive offsets.

    With `append_time` (ms) the timestamp type is LogAppendTime. `level` is the compression level, or None for
    Kafka's default.
    """
    entries = list(records)
    base_timestamp = entries[0].timestamp if entries else NO_TIMESTAMP
    writer = RecordWriter(base_timestamp)
    for record in entries:
        writer.add(record)
    count, max_timestamp = writer.count, writer.max_timestamp
    attributes = codec | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    if append_time is not None:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = append_time
    batch = writer.finish()
    if codec is not Codec.NONE:
        batch = with_records(compress(codec, memoryview(batch)[BATCH_HEADER_BYTES:], level))
    seal(
        batch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=count,
    )
    return batch


def with_records(stream: Buffer) -> bytearray:
    """Return BATCH_HEADER_BYTES zeros followed by the stream of records; `seal` then writes the header."""
    batch = bytearray(BATCH_HEADER_BYTES)
    batch += memoryview(stream)
    return batch


def build_transaction_marker(
    marker: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """Return the control batch that ends a transaction in a partition. `marker` is ABORT or COMMIT."""
    key = _CONTROL_KEY.pack(0, marker)
    value = _END_TRANSACTION_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [NewRecord(key=key, value=value, timestamp=timestamp)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
