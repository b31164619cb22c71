from enum import IntFlag
from typing import NamedTuple

from shm.table import SlotTable

PAYLOAD_BYTES: int

class PartitionFlag(IntFlag):
    PARTITION_LIVE = 1
    PARTITION_OFFLINE = 2
    PARTITION_DELETED = 4

class Partition(NamedTuple):
    topic_id: bytes
    partition: int
    generation: int
    flags: int
    config_version: int
    leader_epoch: int
    log_dir: int
    log_start_offset: int
    high_watermark: int
    high_watermark_segment: int
    high_watermark_position: int
    last_stable_offset: int
    last_stable_segment: int
    last_stable_position: int
    log_end_offset: int
    aborted_end: int = 0

def unpack_partition(payload: bytes | bytearray | memoryview) -> Partition: ...
def pack_partition(p: Partition) -> bytes: ...
def read_partition(table: SlotTable, slot: int) -> Partition: ...
def read_partition_surely(table: SlotTable, slot: int) -> Partition: ...
def damage_word(generation: int, version: int) -> int: ...
def damage_of(word: int, generation: int) -> int: ...
