from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint64_t

from mpbroker.ipc.counters cimport Counter
from mpbroker.ipc.slots cimport Part, PartKind, ReplyFlag, ReplySlot, SlotKind
from mpbroker.network.processor.activity cimport active
from mpbroker.network.processor.answers cimport (
    answer_base, files_are_open, parts_of, release_answer, use_files,
)
from mpbroker.network.processor.channel cimport Channel, ChannelState, CloseReason
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.closing cimport close_channel
from mpbroker.network.processor.files cimport OpenFile, file_find
from mpbroker.network.processor.lists cimport await_files, defer, mark, move
from mpbroker.network.processor.memory cimport free_request
from mpbroker.network.processor.metering cimport begin_timing, end_timing, note_finished, note_size
from mpbroker.network.processor.muting cimport RESPONSE_SENT, mute_event
from mpbroker.network.processor.system_calls cimport MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, send, sendfile
from mpbroker.network.processor.throttling cimport unmute
from shm.counters cimport counter_add


cdef int send_bytes(
    ChannelTurn *t, Channel *c, const uint8_t *bytes, uint64_t length, int flags, uint64_t *budget
) noexcept nogil:
    """Write the rest of `bytes` after `c.part_sent`, at most `budget` bytes, and reduce the budget.

    Return 1 if all is written, 0 if the socket is full, 2 if the budget is used up, -1 on error (errno).
    """
    cdef ssize_t n
    cdef uint64_t want
    while c.part_sent < length:
        if budget[0] == 0:
            return 2
        want = length - c.part_sent
        if want > budget[0]:
            want = budget[0]
        n = send(c.fd, bytes + c.part_sent, want, MSG_NOSIGNAL | MSG_DONTWAIT | flags)
        counter_add(t.counters, Counter.COUNT_WRITES, 1)
        if n < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -1
        c.part_sent += n
        c.moved_bytes += n
        budget[0] -= n
        counter_add(t.counters, Counter.COUNT_BYTES_OUT, n)
    return 1

cdef int send_file(ChannelTurn *t, Channel *c, Part *part, uint64_t *budget) noexcept nogil:
    """Write a slice of a segment file by sendfile(2). Budget and result are as in `send_bytes`."""
    cdef OpenFile *entry = file_find(
        &t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation)
    cdef ssize_t n
    cdef long offset
    cdef uint64_t want
    if entry == NULL:
        return -1
    while c.part_sent < part.length:
        if budget[0] == 0:
            return 2
        want = part.length - c.part_sent
        if want > budget[0]:
            want = budget[0]
        offset = <long>(part.position + c.part_sent)
        n = sendfile(c.fd, entry.fd, &offset, want)
        counter_add(t.counters, Counter.COUNT_WRITES, 1)
        if n < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -1
        if n == 0:
            return -1               # the file is shorter than the handler's slice
        c.part_sent += n
        c.moved_bytes += n
        budget[0] -= n
        counter_add(t.counters, Counter.COUNT_BYTES_OUT, n)
    return 1

cdef int send_answer(ChannelTurn *t, Channel *c) noexcept nogil:
    """Write the channel's answer, or a part of it. Return what `send_bytes` returns."""
    cdef ReplySlot *a = &c.request.answer
    cdef Part *part
    cdef uint8_t *base = answer_base(&t.peers, a)
    cdef uint64_t budget = SENT_PER_TURN_MAX
    cdef int done, flags
    if a.kind == SlotKind.SEND:
        return send_bytes(t, c, base + a.block + a.position, a.length, 0, &budget)
    while c.part < a.length:
        part = parts_of(&t.peers, a) + c.part
        if part.kind == PartKind.PART_FILE:
            done = send_file(t, c, part, &budget)
        else:
            flags = MSG_MORE if c.part + 1 < a.length else 0
            done = send_bytes(t, c, base + a.block + part.position, part.length, flags, &budget)
        if done != 1:
            return done
        c.part += 1
        c.part_sent = 0
    return 1

cdef void start_sending(ChannelTurn *t, Channel *c) noexcept nogil:
    """Begin to send `c.request.answer`. If Python must first open segment files for it, wait for that."""
    c.part = 0
    c.part_sent = 0
    c.checked_ns = 0
    if c.request.answer.kind == SlotKind.SEND_PARTS:
        if not files_are_open(&t.peers, &t.files, c):
            move(&t.lists, c, ChannelState.CHANNEL_OPENING)
            await_files(&t.lists, c)
            return
        use_files(&t.peers, &t.files, c)
    move(&t.lists, c, ChannelState.CHANNEL_SENDING)
    note_size(&t.metering, &c.request)
    continue_sending(t, c)

cdef void continue_sending(ChannelTurn *t, Channel *c) noexcept nogil:
    cdef int done
    cdef uint64_t begun_ns
    if c.secure:
        mark(&t.lists, c)
        return
    begun_ns = begin_timing(&t.metering)
    done = send_answer(t, c)
    end_timing(c, begun_ns)
    active(&t.activity, c, t.now_ns)
    if done == 1:
        counter_add(t.counters, Counter.COUNT_RESPONSES, 1)
        release_answer(&t.peers, &t.files, c)
        finish_request(t, c)
    elif done == 2:
        defer(&t.lists, c, True)
    elif done < 0:
        close_channel(t, c, CloseReason.CLOSED_RESET, errno)

cdef void finish_request(ChannelTurn *t, Channel *c) noexcept nogil:
    """End a request whose answer is written, or that gets no answer, and unmute its channel."""
    note_finished(&t.metering, &c.request)
    free_request(&t.memory, &c.request)
    move(&t.lists, c, ChannelState.CHANNEL_READING)
    c.received = 0
    c.request.needed = 0
    if c.request.answer.flags & ReplyFlag.LAST:
        c.request.answer.flags = 0
        close_channel(t, c, CloseReason.CLOSED_BY_HANDLER, c.request.api_key)
    elif mute_event(&t.mutes, c, RESPONSE_SENT):
        unmute(t, c)
    else:
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
