"""Functions for Python that pack and unpack the descriptors and jobs of `slots.pxd`."""
from collections import namedtuple
from libc.string cimport memcpy, memset

from mpbroker.ipc.slots cimport (
    NETWORK_UNIT_NS, THROTTLED_BY_SHIFT, CallSlot, JobBatch, JobHeader, Part, ProduceSlot, ReplySlot,
    RequestSlot, ReturnSlot,
)
from shm.ring cimport Slot
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

assert sizeof(RequestSlot) == sizeof(Slot) == 64
assert sizeof(ReturnSlot) == 64
assert sizeof(ReplySlot) == 64
assert sizeof(ProduceSlot) == 64
assert sizeof(CallSlot) == 64
assert sizeof(JobHeader) == 16
assert sizeof(JobBatch) == 88
assert sizeof(Part) == 48

PART_BYTES_EACH = sizeof(Part)

Request = namedtuple(
    "Request",
    "kind flags processor channel connection block generation length body api_key api_version "
    "correlation received_ns listener request network_ns",
)
Return = namedtuple("Return", "kind owner block generation")
Reply = namedtuple(
    "Reply",
    "kind flags throttled_by owner channel connection block generation position length "
    "throttle_ms request done_ns queue_us local_us",
)
Produce = namedtuple(
    "Produce",
    "kind acks processor channel connection block generation job owner sender "
    "timeout_ms request queue_us local_us throttle_ms throttled_by",
)
Call = namedtuple("Call", "kind flags owner request block generation length connection")
Batch = namedtuple(
    "Batch",
    "slot slot_generation data data_owner length hole has_log_start record_count producer_id "
    "producer_epoch base_sequence max_timestamp "
    "config_version attributes error base_offset append_time_ms log_start_offset",
)


cdef const unsigned char *_slot_at(const unsigned char[::1] slots, Py_ssize_t index) except NULL:
    if index < 0 or (index + 1) * 64 > slots.shape[0]:
        raise IndexError(f"slot {index} of {slots.shape[0] // 64}")
    return &slots[index * 64]


def kind_of(const unsigned char[::1] slots, Py_ssize_t index=0) -> int:
    return _slot_at(slots, index)[0]


def unpack_request(const unsigned char[::1] slots, Py_ssize_t index=0) -> Request:
    cdef RequestSlot s
    memcpy(&s, _slot_at(slots, index), 64)
    return Request(
        s.kind, s.flags, s.processor, s.channel, s.connection, s.block, s.generation, s.length, s.body,
        s.api_key, s.api_version, s.correlation, s.received_ns, s.listener, s.request,
        <uint64_t>s.network * NETWORK_UNIT_NS,
    )


def pack_request(
    int kind, int processor, uint32_t channel, uint64_t connection, uint64_t block=0, uint64_t generation=0,
    uint32_t length=0, uint32_t body=0, int api_key=0, int api_version=0, int32_t correlation=0,
    uint64_t received_ns=0, int listener=0, uint32_t request=0, int flags=0, uint64_t network_ns=0,
) -> bytes:
    cdef RequestSlot s
    memset(&s, 0, 64)
    s.kind, s.flags, s.processor, s.channel, s.connection = kind, flags, processor, channel, connection
    s.block, s.generation, s.length, s.body = block, generation, length, body
    s.api_key, s.api_version, s.correlation, s.received_ns = api_key, api_version, correlation, received_ns
    s.listener, s.request, s.network = listener, request, network_ns // NETWORK_UNIT_NS
    return (<char *>&s)[:64]


def file_generation(status: os.stat_result) -> int:
    """Return the number by which the file with this status is identified (`file_generation_of`)."""
    return file_generation_of(status.st_ino, status.st_dev)


def unpack_return(const unsigned char[::1] slots, Py_ssize_t index=0) -> Return:
    cdef ReturnSlot s
    memcpy(&s, _slot_at(slots, index), 64)
    return Return(s.kind, s.owner, s.block, s.generation)


def pack_return(int owner, uint64_t block, uint64_t generation) -> bytes:
    cdef ReturnSlot s
    memset(&s, 0, 64)
    s.kind, s.owner, s.block, s.generation = RETURN, owner, block, generation
    return (<char *>&s)[:64]


def unpack_reply(const unsigned char[::1] slots, Py_ssize_t index=0) -> Reply:
    cdef ReplySlot s
    memcpy(&s, _slot_at(slots, index), 64)
    return Reply(
        s.kind, s.flags & (LOGGED | LAST), s.flags >> THROTTLED_BY_SHIFT & 3, s.owner, s.channel,
        s.connection, s.block, s.generation, s.position, s.length, s.throttle_ms, s.request, s.done_ns,
        s.queue_us, s.local_us,
    )


def pack_reply(
    int kind, int owner, uint32_t channel, uint64_t connection, uint64_t block=0, uint64_t generation=0,
    uint32_t position=0, uint32_t length=0, uint32_t throttle_ms=0, uint32_t request=0, uint64_t done_ns=0,
    uint32_t queue_us=0, uint32_t local_us=0, int flags=0, int throttled_by=0,
) -> bytes:
    cdef ReplySlot s
    memset(&s, 0, 64)
    s.kind, s.owner, s.channel, s.connection = kind, owner, channel, connection
    s.block, s.generation, s.position, s.length = block, generation, position, length
    s.throttle_ms, s.request, s.done_ns = throttle_ms, request, done_ns
    s.queue_us, s.local_us, s.flags = queue_us, local_us, flags | throttled_by << THROTTLED_BY_SHIFT
    return (<char *>&s)[:64]


def unpack_produce(const unsigned char[::1] slots, Py_ssize_t index=0) -> Produce:
    cdef ProduceSlot s
    memcpy(&s, _slot_at(slots, index), 64)
    return Produce(
        s.kind, s.acks, s.processor, s.channel, s.connection, s.block, s.generation, s.job, s.owner, s.sender,
        s.timeout_ms, s.request, s.queue_us, s.local_us, s.throttle_ms, s.throttled_by,
    )


def pack_produce(
    int kind, int acks, int processor, uint32_t channel, uint64_t connection, uint64_t block,
    uint64_t generation, uint32_t job, int owner, int sender, uint32_t timeout_ms=0, uint32_t request=0,
    uint32_t queue_us=0, uint32_t local_us=0, uint32_t throttle_ms=0,
) -> bytes:
    cdef ProduceSlot s
    memset(&s, 0, 64)
    s.kind, s.acks, s.processor, s.channel, s.connection = kind, acks, processor, channel, connection
    s.block, s.generation, s.job, s.owner, s.sender = block, generation, job, owner, sender
    s.timeout_ms, s.request, s.queue_us, s.local_us = timeout_ms, request, queue_us, local_us
    s.throttle_ms = throttle_ms
    return (<char *>&s)[:64]


def unpack_call(const unsigned char[::1] slots, Py_ssize_t index=0) -> Call:
    cdef CallSlot s
    memcpy(&s, _slot_at(slots, index), 64)
    return Call(s.kind, s.flags, s.owner, s.request, s.block, s.generation, s.length, s.connection)


def pack_call(
    int kind, int owner, uint32_t request, uint64_t block=0, uint64_t generation=0, uint32_t length=0,
    uint64_t connection=0,
) -> bytes:
    cdef CallSlot s
    memset(&s, 0, 64)
    s.kind, s.owner, s.request, s.block, s.generation, s.length, s.connection = (
        kind, owner, request, block, generation, length, connection,
    )
    return (<char *>&s)[:64]


def job_bytes(int batches) -> int:
    """Return the size of a job with `batches` batches, in bytes, without its reply."""
    return sizeof(JobHeader) + batches * sizeof(JobBatch)


def write_job_header(unsigned char[::1] job, int batches, uint32_t reply=0, uint32_t reply_length=0) -> None:
    cdef JobHeader h
    memset(&h, 0, sizeof(h))
    h.batches, h.reply, h.reply_length = batches, reply, reply_length
    if job.shape[0] < job_bytes(batches):
        raise ValueError(f"a job of {batches} batches needs {job_bytes(batches)} bytes, not {job.shape[0]}")
    memcpy(&job[0], &h, sizeof(h))


def read_job_header(const unsigned char[::1] job) -> tuple[int, int, int]:
    """Return (batches, reply, reply_length) of a job's header; see JobHeader."""
    cdef JobHeader h
    memcpy(&h, &job[0], sizeof(h))
    return h.batches, h.reply, h.reply_length


def write_job_batch(
    unsigned char[::1] job, int index, uint32_t slot, uint32_t slot_generation, uint64_t data, int data_owner,
    uint32_t length, int32_t record_count, int64_t producer_id=-1, int producer_epoch=-1,
    int32_t base_sequence=-1, int64_t max_timestamp=-1, uint32_t config_version=0, int attributes=0,
    uint32_t hole=0, uint32_t has_log_start=0,
) -> None:
    cdef JobBatch b
    memset(&b, 0, sizeof(b))
    b.slot, b.slot_generation, b.data, b.data_owner, b.length = (
        slot, slot_generation, data, data_owner, length,
    )
    b.count, b.producer_id, b.producer_epoch, b.base_sequence = (
        record_count, producer_id, producer_epoch, base_sequence,
    )
    b.max_timestamp, b.config_version, b.attributes = max_timestamp, config_version, attributes
    b.hole, b.has_log_start = hole, has_log_start
    b.base_offset, b.append_time_ms, b.log_start_offset = -1, -1, -1
    if index < 0 or job.shape[0] < job_bytes(index + 1):
        raise IndexError(f"batch {index} lies outside a job of {job.shape[0]} bytes")
    memcpy(&job[<Py_ssize_t>(sizeof(JobHeader) + index * sizeof(JobBatch))], &b, sizeof(b))


def read_job_batch(const unsigned char[::1] job, int index) -> Batch:
    cdef JobBatch b
    if index < 0 or job.shape[0] < job_bytes(index + 1):
        raise IndexError(f"batch {index} lies outside a job of {job.shape[0]} bytes")
    memcpy(&b, &job[<Py_ssize_t>(sizeof(JobHeader) + index * sizeof(JobBatch))], sizeof(b))
    return Batch(
        b.slot, b.slot_generation, b.data, b.data_owner, b.length, b.hole, b.has_log_start, b.count,
        b.producer_id, b.producer_epoch, b.base_sequence, b.max_timestamp, b.config_version, b.attributes,
        b.error, b.base_offset, b.append_time_ms, b.log_start_offset,
    )


def fill_job_batch(
    unsigned char[::1] job, int index, int error,
    int64_t base_offset, int64_t append_time_ms, int64_t log_start_offset,
) -> None:
    """Write the result of an append into the JobBatch at `index`, as a log process does."""
    cdef JobBatch *b
    if index < 0 or job.shape[0] < job_bytes(index + 1):
        raise IndexError(f"batch {index} lies outside a job of {job.shape[0]} bytes")
    b = <JobBatch *>&job[<Py_ssize_t>(sizeof(JobHeader) + index * sizeof(JobBatch))]
    b.error, b.base_offset, b.append_time_ms, b.log_start_offset = (
        error, base_offset, append_time_ms, log_start_offset,
    )


def pack_part(
    int kind, uint32_t length, uint64_t position, uint32_t slot=0, uint32_t slot_generation=0,
    int64_t segment_base=0, uint64_t file_generation=0, uint32_t path=0, uint32_t path_length=0,
) -> bytes:
    cdef Part p
    memset(&p, 0, sizeof(p))
    p.kind, p.length, p.position, p.slot, p.slot_generation = kind, length, position, slot, slot_generation
    p.segment_base, p.file_generation, p.path, p.path_length = (
        segment_base, file_generation, path, path_length,
    )
    return (<char *>&p)[:sizeof(p)]
