"""Layouts of the 64-byte descriptors that processes send each other, and of the produce job in a block.

The offsets are defined in this file only.

A descriptor names a block as (owner, block, generation): the process whose arena has the block, the block's
offset in the arena, and the generation of the lease. It never has record bytes, paths or file descriptors.
`connection` has 64 bits and is never reused; `channel` is the index in the processor's table at which the
processor looks for the connection.

    processor   -> handler        REQUEST, RETURN, CANCEL
    handler     -> processor      SEND, SEND_PARTS, NOOP, CLOSE, PARKED
    handler     -> log            PRODUCE, PRODUCE_BACK, CALL, RETURN
    handler     -> coordinator    CALL, RETURN
    handler     -> tier           CALL, RETURN
    log         -> processor      SEND, NOOP, CLOSE
    log         -> handler        PRODUCED, ANSWER
    log         -> coordinator    PRODUCED, ANSWER
    log         -> cleaner        ANSWER
    coordinator -> handler        TAKEN, ANSWER
    coordinator -> log            PRODUCE_BACK, CALL, RETURN
    cleaner     -> log            CALL, RETURN
    tier        -> handler        ANSWER

Descriptors of one kind have the same layout from every sender:

    RequestSlot    REQUEST, CANCEL
    ReturnSlot     RETURN
    ReplySlot      SEND, SEND_PARTS, NOOP, CLOSE, PARKED
    ProduceSlot    PRODUCE, PRODUCE_BACK, PRODUCED
    CallSlot       CALL, TAKEN, ANSWER
"""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from shm.ring cimport Slot

cpdef enum SlotKind:
    REQUEST = 1         # a whole request, to be answered with exactly one of SEND, SEND_PARTS, NOOP, CLOSE
    RETURN = 2          # the lease of (block, generation) in your arena has ended
    CANCEL = 3          # the connection is closed: drop its parked request
    SEND = 4            # send `length` bytes at `position` of the block
    # send the parts that the part list at `position` names (bytes of the block, slices of segments)
    SEND_PARTS = 5
    NOOP = 6            # send nothing and go on reading
    CLOSE = 7           # close the connection
    # the request waits in the sender's purgatory: it does not count as load, and its block is not read again
    PARKED = 8
    PRODUCE = 9         # append the job's batches; the answer goes straight to the processor
    # append the job's batches; the filled job comes back to the sender. In a processor's block: only the
    # batches of the receiver's partitions
    PRODUCE_BACK = 10
    PRODUCED = 11       # a PRODUCE_BACK job is filled
    CALL = 12           # a message (msgpack) in the block; answered by ANSWER with the same `request`
    ANSWER = 13         # the answer to a CALL; also ends the lease of the CALL's block
    # the message of the CALL with the same `request` was read: the lease of its block has ended, and the
    # ANSWER may take long
    TAKEN = 14

cpdef enum SlotFlag:
    # REQUEST: its cost is unknown; it went alone, to a handler with nothing waiting if there was one
    HEAVY = 1
    AGAIN = 2           # REQUEST: was answered before with slices of files that are deleted or replaced

cpdef enum ReplyFlag:
    # SEND, SEND_PARTS, NOOP, CLOSE: the block ends with the request log's text, and its length (u32)
    LOGGED = 1
    LAST = 8            # SEND: close the connection when the answer is written. For requests of no window

cdef enum:
    THROTTLED_BY_SHIFT = 1      # bits 1 and 2 of a reply's flags
    NETWORK_UNIT_NS = 16384     # a second fits; the rest goes with the next request

cpdef enum ThrottledBy:
    """The quota because of which a client is throttled (Kafka: the ClientQuotaManager that throttles).

    COUNT_THROTTLED_… in Counter have the same order.
    """
    THROTTLED_BY_PRODUCE = 0
    THROTTLED_BY_FETCH = 1
    THROTTLED_BY_REQUEST = 2
    THROTTLED_BY_MUTATION = 3

cdef struct RequestSlot:
    uint8_t kind
    uint8_t flags
    uint16_t processor          # process index of the sender
    uint32_t channel
    uint64_t connection
    uint64_t block              # in the processor's arena
    uint64_t generation
    uint32_t length             # bytes of the frame, its 4-byte size included; the frame begins at `block`
    uint32_t body               # where the body begins, from `block`
    int16_t api_key
    int16_t api_version
    int32_t correlation
    uint64_t received_ns        # CLOCK_MONOTONIC when the frame was whole
    uint16_t listener
    # the processor's time for the connection since its last request, in NETWORK_UNIT_NS
    uint16_t network
    uint32_t request            # the processor's running number, echoed in the reply

cdef struct ReturnSlot:
    uint8_t kind
    uint8_t flags
    uint16_t owner              # process index of the arena that holds the block: the receiver's
    uint32_t reserved
    uint64_t block
    uint64_t generation
    uint64_t reserved_words[5]

cdef struct ReplySlot:
    uint8_t kind
    uint8_t flags               # ReplyFlag; if throttle_ms is not 0, ThrottledBy too
    uint16_t owner              # process index of the arena that holds the block
    uint32_t channel
    uint64_t connection
    uint64_t block              # 0: none
    uint64_t generation
    uint32_t position           # of the bytes or of the part list, from `block`
    uint32_t length             # bytes, or number of parts
    uint32_t throttle_ms
    uint32_t request
    uint64_t done_ns            # CLOCK_MONOTONIC when the request was answered
    uint32_t queue_us           # from the whole frame to its taking by a handler
    uint32_t local_us           # from then until it is answered, handed on or parked

cdef struct ProduceSlot:
    uint8_t kind
    int8_t acks
    uint16_t processor          # PRODUCE: the processor that gets the answer
    uint32_t channel
    uint64_t connection
    uint64_t block
    uint64_t generation
    uint32_t job                # where the job begins, from `block`; 8-byte aligned
    uint16_t owner              # process index of the arena that holds the block
    uint16_t sender             # process index of the handler or coordinator; PRODUCED: of the log worker
    uint32_t timeout_ms
    uint32_t request
    uint32_t queue_us           # this field and the next three go into the reply
    uint32_t local_us
    uint32_t throttle_ms
    uint32_t throttled_by       # a ThrottledBy

cdef struct CallSlot:
    uint8_t kind
    uint8_t flags
    uint16_t owner              # process index of the sender, whose arena holds the block
    uint32_t request            # the caller's running number
    uint64_t block
    uint64_t generation
    uint32_t length
    uint32_t reserved
    uint64_t connection         # the connection that the call is made for, or 0
    uint64_t reserved_words[3]

# A produce job: JobHeader, then `batches` JobBatch. The answer's bytes stand at `reply` with holes that the
# log process fills.
cdef struct JobHeader:
    uint32_t batches
    uint32_t reply              # first byte of the whole response frame, from `block`
    uint32_t reply_length
    uint32_t workers            # a bit for each log worker whose partitions the batches are for

cdef struct JobBatch:
    uint32_t slot               # in the partition table
    uint32_t slot_generation
    uint64_t data               # where the batch begins, as an offset in the arena of `data_owner`
    uint16_t data_owner
    int16_t producer_epoch
    uint32_t length             # bytes of the batch
    # position of error_code in the response, from `block`; 0: without a response
    uint32_t hole
    # the hole is error_code i16, base_offset i64, append_time i64 [, log_start_offset i64]
    uint32_t has_log_start
    int32_t count               # offsets that the batch takes
    int32_t base_sequence
    int64_t producer_id
    int64_t max_timestamp
    uint32_t config_version     # of the topic when the batch was validated
    int16_t attributes
    int16_t error               # the log process fills the fields from here on, for PRODUCE_BACK
    int64_t base_offset
    int64_t append_time_ms
    int64_t log_start_offset

cpdef enum PartKind:
    PART_BYTES = 1
    PART_FILE = 2

# One part of a SEND_PARTS answer, 48 bytes.
cdef struct Part:
    uint32_t kind
    uint32_t length             # bytes
    uint64_t position           # PART_BYTES: from `block`; PART_FILE: in the segment file
    uint32_t slot               # PART_FILE: partition table slot and its generation
    uint32_t slot_generation
    int64_t segment_base        # PART_FILE: base offset of the segment
    # PART_FILE: identity of the file (`file_generation_of`), by which a swapped or moved one is noticed
    uint64_t file_generation
    uint32_t path               # PART_FILE: position of the file's path, from `block`
    uint32_t path_length

cdef inline uint64_t file_generation_of(uint64_t inode, uint64_t device) noexcept nogil:
    """Return a number that identifies a file: the inode number, mixed with the device's number.

    Files of one partition can have the same inode number in two file systems.
    """
    return inode ^ device * <uint64_t>0x9E3779B97F4A7C15
