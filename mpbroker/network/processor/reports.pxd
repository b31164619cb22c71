"""Reports to Python, for the log: connections that were closed, and answers that came after the close."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mpbroker.ipc.slots cimport ReplySlot, SlotKind
from mpbroker.network.processor.channel cimport Channel

cdef enum:
    LOG_LEVELS_ABOVE = 3        # of mpbroker.network.processor, its room and root, checked at import
    CLOSE_REASONS = 32          # room for each CloseReason

cdef struct Event:
    uint32_t channel
    uint32_t reason
    uint64_t connection
    int64_t detail

cdef struct Reports:
    Event *closed               # connections closed since Python looked; has room for all there can be
    uint32_t closed_count
    Event *late                 # answers that came after their connection was closed
    uint32_t late_count
    # levels that clients have given to this process's logger and to those above it; 0: none
    uint64_t *log_levels[LOG_LEVELS_ABOVE]
    uint64_t log_level_at_start
    uint8_t reason_levels[CLOSE_REASONS]    # of the lines about closed connections

cdef inline void note(Channel *c, Event *event, uint32_t reason, int64_t detail) noexcept nogil:
    """Note an event of a channel for Python. The channel's place is not reused until Python has read it."""
    event.channel = c.index
    event.reason = reason
    event.connection = c.connection
    event.detail = detail
    c.unreported += 1

cdef inline void note_late(Reports *r, Channel *c, ReplySlot *a, int api_key, uint32_t most) noexcept nogil:
    """Note an answer that came after its connection was closed, if fewer than `most` are noted."""
    if (a.kind == SlotKind.SEND or a.kind == SlotKind.SEND_PARTS) and r.late_count < most:
        note(c, &r.late[r.late_count], 0, api_key)
        r.late_count += 1
