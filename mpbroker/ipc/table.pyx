"""Access to slots of the partition table for Python; `table.pxd` has the layout of the payload."""
from typing import NamedTuple
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from mpbroker.ipc.table cimport PartitionSlot, version_in
from shm.table import SlotBusy, SlotTable

assert sizeof(PartitionSlot) == 128
PAYLOAD_BYTES = sizeof(PartitionSlot)


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


def unpack_partition(const unsigned char[::1] payload) -> Partition:
    cdef PartitionSlot s
    if payload.shape[0] != sizeof(s):
        raise ValueError(f"a partition slot has {sizeof(s)} bytes, not {payload.shape[0]}")
    memcpy(&s, &payload[0], sizeof(s))
    return Partition(
        (<char *>s.topic_id)[:16], s.partition, s.generation, s.flags, s.config_version, s.leader_epoch,
        s.log_dir, s.log_start_offset, s.high_watermark.offset, s.high_watermark.segment_base,
        s.high_watermark.position, s.last_stable.offset, s.last_stable.segment_base, s.last_stable.position,
        s.log_end_offset, s.aborted_end,
    )


def pack_partition(p: Partition) -> bytes:
    cdef PartitionSlot s
    cdef bytes topic_id = p.topic_id
    if len(topic_id) != 16:
        raise ValueError(f"a topic id has 16 bytes, not {len(topic_id)}")
    memset(&s, 0, sizeof(s))
    memcpy(s.topic_id, <const char *>topic_id, 16)
    s.partition, s.generation, s.flags, s.config_version = (
        p.partition, p.generation, p.flags, p.config_version,
    )
    s.leader_epoch, s.log_dir, s.log_start_offset = p.leader_epoch, p.log_dir, p.log_start_offset
    s.high_watermark.offset, s.high_watermark.segment_base = p.high_watermark, p.high_watermark_segment
    s.high_watermark.position = p.high_watermark_position
    s.last_stable.offset, s.last_stable.segment_base = p.last_stable_offset, p.last_stable_segment
    s.last_stable.position, s.log_end_offset = p.last_stable_position, p.log_end_offset
    s.aborted_end = p.aborted_end
    return (<char *>&s)[:sizeof(s)]


def read_partition(table: SlotTable, slot: int) -> Partition:
    """Return the partition in a slot. Raises IndexError or, during a write, shm.table.SlotBusy."""
    return unpack_partition(table.read(slot))


def read_partition_surely(table: SlotTable, slot: int) -> Partition:
    """Return the partition in a slot, retrying while it is being written. Raises IndexError.

    The retries end, because even a writer that was killed leaves a complete payload.
    """
    while True:
        try:
            return read_partition(table, slot)
        except SlotBusy:
            continue


def word_of(uint32_t generation, uint32_t version) -> int:
    """Return the word that stands for this generation and version (`table.pxd`)."""
    return <uint64_t>generation << 32 | version


def version_of(uint64_t word, uint32_t generation) -> int:
    """Return the version in a word; 0 if the word is not of `generation`."""
    return version_in(word, generation)
