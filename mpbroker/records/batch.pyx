"""The record batch of magic 2, for Python: constants of its layout, the native check, in-place changes.

batch.h defines and describes the layout. Cython modules cimport from batch.pxd instead, without Python
objects. (Kafka: DefaultRecordBatch, KIP-98.)
"""

from time import perf_counter_ns
from typing import NamedTuple

from mpbroker.records.errors import CorruptBatch, Fault

NO_PRODUCER_EPOCH = -1

_REASONS = {
    REASON_NONE: "",
    REASON_NO_BATCH: "the record batch is not whole",
    REASON_LENGTH: "the batch length is less than the smallest possible",
    REASON_UNKNOWN_MAGIC: "the magic is not 0, 1 or 2",
    REASON_OLD_MAGIC: "the magic is less than 2",
    REASON_BASE_OFFSET: "the base offset is not 0",
    REASON_SIZE: "the batch is larger than max.message.bytes",
    REASON_SHORT_HEADER: "the batch is shorter than its header",
    REASON_CRC: "the CRC does not match",
    REASON_CODEC: "the compression codec is not one of 0 to 4",
    REASON_CONTROL: "clients may not write control batches",
    REASON_COUNT: "the record count is not the last offset delta + 1, or not positive",
    REASON_SEQUENCE: "the batch has a producer id but no base sequence",
    REASON_SECOND_BATCH: "there is more than one record batch",
    REASON_RECORD_LENGTH: "the record's length does not fit",
    REASON_RECORD_FIELD: "a field of the record is malformed or reaches beyond its end",
    REASON_OFFSET_DELTA: "the record's offset delta is not its place in the batch",
    REASON_HEADERS: "the record's headers are malformed",
    REASON_RECORD_END: "the record's fields end before its length",
    REASON_BATCH_END: "bytes follow the last record",
}
assert len(_REASONS) == COUNT_OF_REASONS

_FAULTS = {
    _REASONS[REASON_UNKNOWN_MAGIC]: Fault.INVALID_MAGIC,
    _REASONS[REASON_OLD_MAGIC]: Fault.INVALID_MAGIC,
    _REASONS[REASON_CRC]: Fault.INVALID_CRC,
    _REASONS[REASON_BASE_OFFSET]: Fault.INVALID_OFFSET_OR_SEQUENCE,
    _REASONS[REASON_COUNT]: Fault.INVALID_OFFSET_OR_SEQUENCE,
    _REASONS[REASON_SEQUENCE]: Fault.INVALID_OFFSET_OR_SEQUENCE,
    _REASONS[REASON_OFFSET_DELTA]: Fault.INVALID_OFFSET_OR_SEQUENCE,
}


def fault_of(str reason) -> Fault:
    """Return the Fault that metrics count for a refusal with this text (see `reason_text`)."""
    return _FAULTS.get(reason, Fault.OTHER)


def reason_text(int reason) -> str:
    """Return the text of a BatchReason (in batch.h: why a batch is refused); "" for REASON_NONE."""
    return _REASONS[reason]


class BatchFrame(NamedTuple):
    """The fields of a batch's header, and the batch's position in its buffer."""

    position: int
    length: int
    base_offset: int
    leader_epoch: int
    record_count: int
    last_offset_delta: int
    attributes: int
    codec: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def frame_at(const uint8_t[::1] data, int64_t position, bint check_crc=True) -> BatchFrame | None:
    """Return the header of the batch at `position`; None at the end of the data, or if the batch is cut off.

    Raises CorruptBatch if these bytes are not a batch, ValueError for a position outside of the data.
    """
    cdef BatchInfo info
    cdef int64_t length
    cdef int reason, verdict
    if not 0 <= position <= data.shape[0]:
        raise ValueError(f"position {position} lies outside of {data.shape[0]} bytes")
    if position == data.shape[0]:
        return None
    cdef const uint8_t *p = &data[position]
    verdict = whole_batch(p, data.shape[0] - position, check_crc, &length, &reason)
    if verdict == BATCH_TRAILING:
        return None
    if verdict != BATCH_OK:
        raise CorruptBatch(position, _REASONS[reason])
    read_header(p, <int32_t>length, &info)
    return BatchFrame(
        position, info.length, load_i64(p + <int>BASE_OFFSET_AT), load_i32(p + <int>LEADER_EPOCH_AT),
        info.count, info.last_offset_delta, info.attributes, info.codec, info.base_timestamp,
        info.max_timestamp, info.producer_id, info.producer_epoch, info.base_sequence,
    )


class BatchScan(NamedTuple):
    """The result of the native check of a batch; see BatchVerdict and BatchInfo in batch.h."""

    verdict: int
    reason: str
    bad_record: int
    length: int
    record_count: int
    last_offset_delta: int
    attributes: int
    codec: int
    base_timestamp: int
    max_timestamp: int
    min_timestamp: int
    header_max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    has_null_key: bool
    max_timestamp_wrong: bool


class WalkScan(NamedTuple):
    """The result of checking uncompressed records (batch.h: RecordWalk). `reason` is "" if all are valid."""

    reason: str
    bad_record: int
    max_timestamp: int
    min_timestamp: int
    has_null_key: bool
    consecutive: bool


def scan_batch(const uint8_t[::1] data, int32_t max_message_bytes=0x7fffffff) -> BatchScan:
    """Check the record data of one partition of a Produce request, as the native produce path does."""
    cdef BatchInfo info
    cdef int verdict
    cdef const uint8_t *p = NULL
    if data.shape[0]:
        p = &data[0]
    with nogil:
        verdict = validate_batch(p, data.shape[0], max_message_bytes, &info)
    return BatchScan(
        verdict, _REASONS[info.reason], info.bad_record, info.length, info.count, info.last_offset_delta,
        info.attributes, info.codec, info.base_timestamp, info.max_timestamp, info.min_timestamp,
        info.header_max_timestamp, info.producer_id, info.producer_epoch, info.base_sequence,
        bool(info.has_null_key), bool(info.max_timestamp_wrong),
    )


def bench_scan(const uint8_t[::1] data, int64_t rounds) -> tuple[int, float]:
    """Return the native check's verdict on the batch, and its mean time in ns in the best of five runs."""
    cdef BatchInfo info
    cdef int verdict = BATCH_INVALID
    cdef int64_t _
    best = float("inf")
    for _ in range(5):
        started = perf_counter_ns()
        with nogil:
            for _ in range(rounds):
                verdict = validate_batch(&data[0], data.shape[0], 0x7fffffff, &info)
        best = min(best, (perf_counter_ns() - started) / rounds)
    return verdict, best


def scan_records(const uint8_t[::1] records, int32_t count, int64_t base_timestamp) -> WalkScan:
    """Check `count` uncompressed records, which must fill the buffer exactly."""
    cdef RecordWalk walk
    cdef int reason
    cdef const uint8_t *p = NULL
    walk.bad_record = -1
    walk.max_timestamp = walk.min_timestamp = NO_TIMESTAMP
    walk.has_null_key = walk.consecutive = 0
    if records.shape[0]:
        p = &records[0]
    with nogil:
        reason = walk_records(p, p + records.shape[0], count, base_timestamp, &walk)
    return WalkScan(
        _REASONS[reason], walk.bad_record, walk.max_timestamp, walk.min_timestamp, bool(walk.has_null_key),
        bool(walk.consecutive),
    )


cdef uint8_t *_whole_batch(uint8_t[::1] batch) except NULL:
    if batch.shape[0] < BATCH_HEADER_BYTES:
        raise ValueError(f"a batch has at least {BATCH_HEADER_BYTES} bytes, this has {batch.shape[0]}")
    return &batch[0]


def assign_offset_and_epoch(uint8_t[::1] batch, int64_t base_offset, int32_t leader_epoch) -> None:
    """Set the batch's base offset and leader epoch, which the CRC does not cover."""
    set_offset_and_epoch(_whole_batch(batch), base_offset, leader_epoch)


def stamp_append_time(uint8_t[::1] batch, int64_t now_ms) -> None:
    """Set a batch's timestamp type to LogAppendTime, its largest timestamp to `now_ms`; update its CRC."""
    stamp_log_append_time(_whole_batch(batch), batch.shape[0], now_ms)


def correct_max_timestamp(uint8_t[::1] batch, int64_t max_timestamp_ms) -> None:
    """Set a batch's timestamp type to CreateTime, and its largest timestamp; update its CRC."""
    set_max_timestamp(_whole_batch(batch), batch.shape[0], max_timestamp_ms)


def assign_producer(
    uint8_t[::1] batch, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
    bint transactional=False
) -> None:
    """Set a whole batch's producer fields, and its transactional bit if `transactional`; update its CRC."""
    set_producer(
        _whole_batch(batch), batch.shape[0], producer_id, producer_epoch, base_sequence, transactional
    )


def checksum(const uint8_t[::1] data, uint32_t seed=0) -> int:
    """Return the CRC-32C of the data, continued from `seed`, the CRC of the preceding bytes."""
    if data.shape[0] == 0:
        return seed
    return crc32c(seed, &data[0], data.shape[0])


def checksum_in_software(const uint8_t[::1] data, uint32_t seed=0) -> int:
    """Return the same as `checksum`, computed without the processor's CRC instruction."""
    if data.shape[0] == 0:
        return seed
    return ~crc32c_software(~seed, &data[0], data.shape[0]) & 0xffffffff
