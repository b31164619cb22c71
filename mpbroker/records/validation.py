"""Validates produced batches in Python. The native produce path handles common batches by the same rules.

The native check of batch.h comes first. The checks in this module depend on the topic's configuration or need
decompressed records (Kafka: LogValidator, UnifiedLog.analyzeAndValidateRecords).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias, TypeVar

import msgspec

from mpbroker.records.batch import (
    BATCH_COMPRESSED,
    BATCH_CORRUPT,
    BATCH_HEADER_BYTES,
    BATCH_OK,
    BATCH_TOO_LARGE,
    BATCH_TRAILING,
    CODEC_MASK,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchScan,
    WalkScan,
    correct_max_timestamp,
    fault_of,
    scan_batch,
)
from mpbroker.records.builder import with_records
from mpbroker.records.compression import DEFAULT_LIMIT_BYTES, Codec, decompress, packing
from mpbroker.records.errors import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
    CompressionError,
    Fault,
    InvalidRecords,
    RecordError,
)
from mpbroker.records.record import CREATE_TIME
from mpbroker.records.stream import RecordRules, RecordWalker, Renumbering, seal
from mpbroker.records.unpack import LIBRARIES, Unpacking

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
Pieces: TypeAlias = Generator[None, None, T]
"""A generator of long work: it yields after each piece, for its caller to do other work, and returns a T."""

# Bytes of records in a piece: a few milliseconds with the slowest codec and level that is common.
UNPACKED_AT_ONCE_BYTES: Final = 1 << 20
PACKED_AT_ONCE_BYTES: Final = 32 << 10
RECORD_ERRORS_MAX: Final = 100

MAX_LONG: Final = (1 << 63) - 1
MIN_LONG: Final = -(1 << 63)
DEFAULT_MAX_MESSAGE_BYTES: Final = 1048588
DEFAULT_AFTER_MAX_MS: Final = 3_600_000


class TopicPolicy(msgspec.Struct, frozen=True):
    """The settings of a topic against which produced batches are validated. The defaults are Kafka's."""

    compact: bool = False
    timestamp_type: int = CREATE_TIME
    timestamp_before_max_ms: int = MAX_LONG
    timestamp_after_max_ms: int = DEFAULT_AFTER_MAX_MS
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    compression: Codec | None = None
    """The codec of compression.type; None means `producer`, to keep the batch's codec."""
    compression_level: int | None = None
    max_decompressed_bytes: int = DEFAULT_LIMIT_BYTES


class ValidatedBatch(msgspec.Struct, frozen=True):
    """A batch that may be appended. With LogAppendTime the log sets the batch's timestamp when it appends."""

    data: memoryview
    record_count: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    rebuilt: bool
    decompressed_bytes: int = 0
    """The size of the decompressed records; 0 if they were not copied from the request."""


def at_once(pieces: Pieces[T]) -> T:
    """Run the generator to its end, and return its result."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            result: T = end.value
            return result


def validate(data: Buffer, policy: TopicPolicy, *, now_ms: int, zstd_allowed: bool = True) -> ValidatedBatch:
    """Run `validate_in_pieces` to its end, and return its result."""
    return at_once(validate_in_pieces(data, policy, now_ms=now_ms, zstd_allowed=zstd_allowed))


def validate_in_pieces(
    data: Buffer, policy: TopicPolicy, *, now_ms: int, zstd_allowed: bool = True
) -> Pieces[ValidatedBatch]:
    """Return the batch to append for the record data of one partition of a Produce request.

    The result is a view of the data if possible. A wrong largest timestamp is corrected, in place if the data
    is writable. A batch with another codec than the topic's, or with wrong offset deltas, is rebuilt. An
    incomplete second batch is cut off. Rebuilding takes up to three times as much memory as the
    decompressed records. Raises InvalidRecords if the batch is refused.
    """
    view = memoryview(data).cast("B")
    scan = scan_batch(view, policy.max_message_bytes)
    if scan.verdict == BATCH_TRAILING:
        view = view[: scan.length]
        scan = scan_batch(view, policy.max_message_bytes)
    if scan.verdict not in (BATCH_OK, BATCH_COMPRESSED):
        _refuse(scan)
    if scan.codec == Codec.ZSTD and not zstd_allowed:
        raise InvalidRecords(UNSUPPORTED_COMPRESSION_TYPE, "Produce before version 7 may not carry zstd")
    stream = yield from _unpack(view, scan, policy)
    walk = yield from _walk(stream, scan)
    if walk.reason:
        raise _invalid(walk.reason, walk.bad_record)
    yield from _check_records(stream, scan, walk, policy, now_ms)
    codec = Codec(scan.codec) if policy.compression is None else policy.compression
    unpacked_bytes = memoryview(stream).nbytes
    if codec == scan.codec and walk.consecutive:
        batch = _in_place(view, scan, walk, policy)
    else:
        if not walk.consecutive:
            stream = yield from _renumber(stream, scan)
        batch = yield from _rebuild(stream, scan, walk, policy, codec)
    if scan.codec == Codec.NONE and not batch.rebuilt:
        return batch
    return msgspec.structs.replace(batch, decompressed_bytes=unpacked_bytes)


def _invalid(reason: str, bad_record: int) -> InvalidRecords:
    if bad_record < 0:
        return InvalidRecords(INVALID_RECORD, reason, fault=fault_of(reason))
    error = RecordError(bad_record, reason)
    text = f"record {bad_record}: {reason}"
    return InvalidRecords(INVALID_RECORD, text, (error,), fault_of(reason))


def _refuse(scan: BatchScan) -> NoReturn:
    if scan.verdict == BATCH_CORRUPT:
        raise InvalidRecords(CORRUPT_MESSAGE, scan.reason, fault=fault_of(scan.reason))
    if scan.verdict == BATCH_TOO_LARGE:
        raise InvalidRecords(MESSAGE_TOO_LARGE, scan.reason)
    raise _invalid(scan.reason, scan.bad_record)


def _unpack(view: memoryview, scan: BatchScan, policy: TopicPolicy) -> Pieces[Buffer]:
    packed = view[BATCH_HEADER_BYTES : scan.length]
    if scan.codec == Codec.NONE:
        return packed
    try:
        if not LIBRARIES.has(scan.codec):
            return decompress(Codec(scan.codec), packed, policy.max_decompressed_bytes)
        unpacking = Unpacking(scan.codec, packed, policy.max_decompressed_bytes)
        while not unpacking.step(UNPACKED_AT_ONCE_BYTES):
            yield
        return unpacking.stream
    except CompressionError as error:
        raise InvalidRecords(INVALID_RECORD, f"the records cannot be decompressed: {error}") from error


def _walk(stream: Buffer, scan: BatchScan) -> Pieces[WalkScan]:
    walker = RecordWalker(stream, scan.record_count, scan.base_timestamp)
    while not walker.step(UNPACKED_AT_ONCE_BYTES):
        yield
    return walker.result()


def _check_records(
    stream: Buffer, scan: BatchScan, walk: WalkScan, policy: TopicPolicy, now_ms: int
) -> Pieces[None]:
    """Check each record's key and timestamp, if the `walk` shows that a record may break a rule.

    Raises InvalidRecords with an error for each such record, up to RECORD_ERRORS_MAX.
    """
    stamped = bool(scan.attributes & LOG_APPEND_TIME_BIT)
    ranged = policy.timestamp_type == CREATE_TIME
    if (
        not (policy.compact and walk.has_null_key)
        and not stamped
        and (not ranged or _in_range(walk.min_timestamp, policy, now_ms))
        and (not ranged or _in_range(walk.max_timestamp, policy, now_ms))
    ):
        return
    earliest, latest = MIN_LONG, MAX_LONG
    if ranged and not stamped:
        earliest = max(now_ms - policy.timestamp_before_max_ms, MIN_LONG)
        latest = min(now_ms + policy.timestamp_after_max_ms, MAX_LONG)
    # All records of a stamped batch have the timestamp of its header.
    stamp = scan.header_max_timestamp if stamped else None
    rules = RecordRules(
        stream,
        scan.record_count,
        scan.base_timestamp,
        keyed=policy.compact,
        earliest=earliest,
        latest=latest,
        refuses_all=stamp is not None and _timestamp_problem(stamp, stamped, policy, now_ms) is not None,
        most=RECORD_ERRORS_MAX,
    )
    while not rules.step(UNPACKED_AT_ONCE_BYTES):
        yield
    if not rules.refused_count:
        return
    errors = []
    for index, timestamp, is_keyless in rules.refused:
        problem = "Compacted topic cannot accept message without key."
        if not is_keyless:
            shown = timestamp if stamp is None else stamp
            problem = _timestamp_problem(shown, stamped, policy, now_ms) or ""
        errors.append(RecordError(index, problem))
    text = f"{rules.refused_count} records are refused: {errors[0].message}"
    keyless = rules.keyless_count
    code = INVALID_TIMESTAMP if keyless < rules.refused_count else INVALID_RECORD
    fault = Fault.NO_KEY_COMPACTED if keyless else Fault.OTHER
    raise InvalidRecords(code, text, tuple(errors), fault, max(keyless, 1))


def _in_range(timestamp: int, policy: TopicPolicy, now_ms: int) -> bool:
    if timestamp == NO_TIMESTAMP:
        return True
    return (
        now_ms - timestamp <= policy.timestamp_before_max_ms
        and timestamp - now_ms <= policy.timestamp_after_max_ms
    )


def _timestamp_problem(timestamp: int, stamped: bool, policy: TopicPolicy, now_ms: int) -> str | None:
    """Return the problem with a record's timestamp, or None.

    If the topic's type is CreateTime, a timestamp other than -1 must be in range, and nothing else is
    checked. In all other cases, the client must not have given the batch the type LogAppendTime (`stamped`).
    """
    if policy.timestamp_type == CREATE_TIME and timestamp != NO_TIMESTAMP:
        if _in_range(timestamp, policy, now_ms):
            return None
        return (
            f"Timestamp {timestamp} is out of range: "
            f"it may be at most {policy.timestamp_before_max_ms} ms before "
            f"and {policy.timestamp_after_max_ms} ms after {now_ms}"
        )
    return "A client may not set LogAppendTime as the timestamp type of a batch." if stamped else None


def _in_place(view: memoryview, scan: BatchScan, walk: WalkScan, policy: TopicPolicy) -> ValidatedBatch:
    attributes = scan.attributes
    if policy.timestamp_type == CREATE_TIME:
        attributes &= ~LOG_APPEND_TIME_BIT
        if walk.max_timestamp != scan.header_max_timestamp or attributes != scan.attributes:
            view = memoryview(bytearray(view)) if view.readonly else view
            correct_max_timestamp(view, walk.max_timestamp)
    return _validated(view, scan, walk, attributes, rebuilt=False)


def _renumber(stream: Buffer, scan: BatchScan) -> Pieces[Buffer]:
    renumbering, renumbered = Renumbering(stream, scan.record_count), bytearray()
    while piece := renumbering.take(PACKED_AT_ONCE_BYTES):
        renumbered += piece
        yield
    return renumbered


def _pack(stream: Buffer, codec: Codec, level: int | None) -> Pieces[Buffer]:
    view = memoryview(stream).cast("B")
    whole = packing(codec, len(view), level)
    for at in range(0, len(view), PACKED_AT_ONCE_BYTES):
        whole.add(view[at : at + PACKED_AT_ONCE_BYTES])
        yield
    return whole.finish()


def _rebuild(
    stream: Buffer, scan: BatchScan, walk: WalkScan, policy: TopicPolicy, codec: Codec
) -> Pieces[ValidatedBatch]:
    level = policy.compression_level if codec is policy.compression else None
    packed = yield from _pack(stream, codec, level)
    length = BATCH_HEADER_BYTES + memoryview(packed).nbytes
    if length > policy.max_message_bytes:
        raise InvalidRecords(
            MESSAGE_TOO_LARGE,
            f"the batch has {length} bytes after it was rebuilt with codec {codec.name.lower()}, "
            f"max.message.bytes is {policy.max_message_bytes}",
        )
    batch = with_records(packed)
    attributes = (scan.attributes & ~CODEC_MASK & ~LOG_APPEND_TIME_BIT) | codec
    seal(
        batch,
        base_offset=0,
        leader_epoch=-1,
        attributes=attributes,
        last_offset_delta=scan.last_offset_delta,
        base_timestamp=scan.base_timestamp,
        max_timestamp=walk.max_timestamp,
        producer_id=scan.producer_id,
        producer_epoch=scan.producer_epoch,
        base_sequence=scan.base_sequence,
        count=scan.record_count,
    )
    return _validated(memoryview(batch), scan, walk, attributes, rebuilt=True)


def _validated(
    view: memoryview, scan: BatchScan, walk: WalkScan, attributes: int, *, rebuilt: bool
) -> ValidatedBatch:
    return ValidatedBatch(
        data=view,
        record_count=scan.record_count,
        max_timestamp=walk.max_timestamp,
        producer_id=scan.producer_id,
        producer_epoch=scan.producer_epoch,
        base_sequence=scan.base_sequence,
        attributes=attributes,
        rebuilt=rebuilt,
    )
