import os
from enum import IntEnum
from typing import NamedTuple

_Bytes = bytes | bytearray | memoryview

PART_BYTES_EACH: int

class SlotKind(IntEnum):
    REQUEST = 1
    RETURN = 2
    CANCEL = 3
    SEND = 4
    SEND_PARTS = 5
    NOOP = 6
    CLOSE = 7
    PARKED = 8
    PRODUCE = 9
    PRODUCE_BACK = 10
    PRODUCED = 11
    CALL = 12
    ANSWER = 13
    TAKEN = 14

class ReplyFlag(IntEnum):
    LOGGED = 1

class SlotFlag(IntEnum):
    HEAVY = 1
    AGAIN = 2

class ThrottledBy(IntEnum):
    THROTTLED_BY_PRODUCE = 0
    THROTTLED_BY_FETCH = 1
    THROTTLED_BY_REQUEST = 2
    THROTTLED_BY_MUTATION = 3

class PartKind(IntEnum):
    PART_BYTES = 1
    PART_FILE = 2

class Request(NamedTuple):
    kind: int
    flags: int
    processor: int
    channel: int
    connection: int
    block: int
    generation: int
    length: int
    body: int
    api_key: int
    api_version: int
    correlation: int
    received_ns: int
    listener: int
    request: int
    network_ns: int

class Return(NamedTuple):
    kind: int
    owner: int
    block: int
    generation: int

class Reply(NamedTuple):
    kind: int
    flags: int
    throttled_by: int
    owner: int
    channel: int
    connection: int
    block: int
    generation: int
    position: int
    length: int
    throttle_ms: int
    request: int
    done_ns: int
    queue_us: int
    local_us: int

class Produce(NamedTuple):
    kind: int
    acks: int
    processor: int
    channel: int
    connection: int
    block: int
    generation: int
    job: int
    owner: int
    sender: int
    timeout_ms: int
    request: int
    queue_us: int
    local_us: int
    throttle_ms: int
    throttled_by: int

class Call(NamedTuple):
    kind: int
    flags: int
    owner: int
    request: int
    block: int
    generation: int
    length: int
    connection: int

class Batch(NamedTuple):
    slot: int
    slot_generation: int
    data: int
    data_owner: int
    length: int
    hole: int
    has_log_start: int
    record_count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp: int
    config_version: int
    attributes: int
    error: int
    base_offset: int
    append_time_ms: int
    log_start_offset: int

def kind_of(slots: _Bytes, index: int = 0) -> int: ...
def unpack_request(slots: _Bytes, index: int = 0) -> Request: ...
def pack_request(
    kind: int,
    processor: int,
    channel: int,
    connection: int,
    block: int = 0,
    generation: int = 0,
    length: int = 0,
    body: int = 0,
    api_key: int = 0,
    api_version: int = 0,
    correlation: int = 0,
    received_ns: int = 0,
    listener: int = 0,
    request: int = 0,
    flags: int = 0,
    network_ns: int = 0,
) -> bytes: ...
def file_generation(status: os.stat_result) -> int: ...
def unpack_return(slots: _Bytes, index: int = 0) -> Return: ...
def pack_return(owner: int, block: int, generation: int) -> bytes: ...
def unpack_reply(slots: _Bytes, index: int = 0) -> Reply: ...
def pack_reply(
    kind: int,
    owner: int,
    channel: int,
    connection: int,
    block: int = 0,
    generation: int = 0,
    position: int = 0,
    length: int = 0,
    throttle_ms: int = 0,
    request: int = 0,
    done_ns: int = 0,
    queue_us: int = 0,
    local_us: int = 0,
    flags: int = 0,
    throttled_by: int = 0,
) -> bytes: ...
def unpack_produce(slots: _Bytes, index: int = 0) -> Produce: ...
def pack_produce(
    kind: int,
    acks: int,
    processor: int,
    channel: int,
    connection: int,
    block: int,
    generation: int,
    job: int,
    owner: int,
    sender: int,
    timeout_ms: int = 0,
    request: int = 0,
    queue_us: int = 0,
    local_us: int = 0,
    throttle_ms: int = 0,
) -> bytes: ...
def unpack_call(slots: _Bytes, index: int = 0) -> Call: ...
def pack_call(
    kind: int,
    owner: int,
    request: int,
    block: int = 0,
    generation: int = 0,
    length: int = 0,
    connection: int = 0,
) -> bytes: ...
def job_bytes(batches: int) -> int: ...
def write_job_header(
    job: bytearray | memoryview, batches: int, reply: int = 0, reply_length: int = 0
) -> None: ...
def read_job_header(job: _Bytes) -> tuple[int, int, int]: ...
def write_job_batch(
    job: bytearray | memoryview,
    index: int,
    slot: int,
    slot_generation: int,
    data: int,
    data_owner: int,
    length: int,
    record_count: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    max_timestamp: int = -1,
    config_version: int = 0,
    attributes: int = 0,
    hole: int = 0,
    has_log_start: int = 0,
) -> None: ...
def read_job_batch(job: _Bytes, index: int) -> Batch: ...
def fill_job_batch(
    job: bytearray | memoryview,
    index: int,
    error: int,
    base_offset: int,
    append_time_ms: int,
    log_start_offset: int,
) -> None: ...
def pack_part(
    kind: int,
    length: int,
    position: int,
    slot: int = 0,
    slot_generation: int = 0,
    segment_base: int = 0,
    file_generation: int = 0,
    path: int = 0,
    path_length: int = 0,
) -> bytes: ...
