"""The record batch of magic 2 (see batch.h): layout constants, native check, changes made in place."""

from typing import Final, NamedTuple

from typing_extensions import Buffer

from mpbroker.records.errors import Fault

BASE_OFFSET_AT: Final[int]
BATCH_LENGTH_AT: Final[int]
LENGTH_COUNTS_FROM: Final[int]
LEADER_EPOCH_AT: Final[int]
MAGIC_AT: Final[int]
MAGIC_ENDS_AT: Final[int]
CRC_AT: Final[int]
CRC_COVERS_FROM: Final[int]
ATTRIBUTES_AT: Final[int]
LAST_OFFSET_DELTA_AT: Final[int]
BASE_TIMESTAMP_AT: Final[int]
MAX_TIMESTAMP_AT: Final[int]
PRODUCER_ID_AT: Final[int]
PRODUCER_EPOCH_AT: Final[int]
BASE_SEQUENCE_AT: Final[int]
RECORD_COUNT_AT: Final[int]
BATCH_HEADER_BYTES: Final[int]
SMALLEST_BATCH_LENGTH: Final[int]
SMALLEST_RECORD_BYTES: Final[int]
CURRENT_MAGIC: Final[int]
CODEC_MASK: Final[int]
LOG_APPEND_TIME_BIT: Final[int]
TRANSACTIONAL_BIT: Final[int]
CONTROL_BIT: Final[int]
DELETE_HORIZON_BIT: Final[int]
LAST_CODEC: Final[int]
NO_TIMESTAMP: Final[int]
NO_PRODUCER_ID: Final[int]
NO_SEQUENCE: Final[int]
BATCH_OK: Final[int]
BATCH_COMPRESSED: Final[int]
BATCH_TRAILING: Final[int]
BATCH_MORE: Final[int]
BATCH_CORRUPT: Final[int]
BATCH_INVALID: Final[int]
BATCH_TOO_LARGE: Final[int]
NO_PRODUCER_EPOCH: Final[int]

class BatchFrame(NamedTuple):
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

class BatchScan(NamedTuple):
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
    reason: str
    bad_record: int
    max_timestamp: int
    min_timestamp: int
    has_null_key: bool
    consecutive: bool

def reason_text(reason: int) -> str: ...
def fault_of(reason: str) -> Fault: ...
def frame_at(data: Buffer, position: int, check_crc: bool = True) -> BatchFrame | None: ...
def scan_batch(data: Buffer, max_message_bytes: int = 0x7FFFFFFF) -> BatchScan: ...
def bench_scan(data: Buffer, rounds: int) -> tuple[int, float]: ...
def scan_records(records: Buffer, count: int, base_timestamp: int) -> WalkScan: ...
def assign_offset_and_epoch(batch: Buffer, base_offset: int, leader_epoch: int) -> None: ...
def stamp_append_time(batch: Buffer, now_ms: int) -> None: ...
def correct_max_timestamp(batch: Buffer, max_timestamp_ms: int) -> None: ...
def assign_producer(
    batch: Buffer,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool = False,
) -> None: ...
def checksum(data: Buffer, seed: int = 0) -> int: ...
def checksum_in_software(data: Buffer, seed: int = 0) -> int: ...
