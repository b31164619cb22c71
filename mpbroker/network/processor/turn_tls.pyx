"""Channels of TLS and SASL listeners: Python does their I/O, the turn serves their frames and answers.

A channel of a listener that is not PLAINTEXT begins as NEGOTIATING: the turn does not read it, and Python has
its socket. When its client is authenticated, a channel with TLS becomes MOVED: Python decrypts into its block
and encrypts its answers (tls_pipe.pyx), and the turn does the rest. A channel without TLS becomes an ordinary
channel.
"""
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.unistd cimport pread

from mpbroker.ipc.counters cimport Counter
from mpbroker.ipc.session cimport session_software
from mpbroker.ipc.slots cimport Part, PartKind, ReplySlot, SlotKind
from mpbroker.network.processor.activity cimport active
from mpbroker.network.processor.answers cimport answer_base, parts_of, release_answer
from mpbroker.network.processor.channel cimport (
    MOVED, NEGOTIATING, Channel, ChannelState, CloseReason, WindowEntry,
)
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.closing cimport close_channel
from mpbroker.network.processor.dispatch cimport dispatch, publish
from mpbroker.network.processor.files cimport OpenFile, file_find
from mpbroker.network.processor.lists cimport defer
from mpbroker.network.processor.memory cimport free_request, free_stash
from mpbroker.network.processor.metering cimport count_client
from mpbroker.network.processor.receiving cimport (
    frame_received, frame_room, may_receive, memory_full, next_frame, stream_ended,
)
from mpbroker.network.processor.sending cimport finish_request
from mpbroker.network.processor.tls_pipe cimport TlsPipe
from mpbroker.network.processor.turn cimport ProcessorTurn
from mpbroker.network.processor.window_answers cimport after_answers_written, end_written, window_written
from mpbroker.network.processor.window_entries cimport entry_at, window_holds_answers, window_is_full
from shm.counters cimport counter_add, monotonic_ns

cdef int64_t read_part(ChannelTurn *t, Part *part, uint64_t at, uint8_t *into, uint64_t room) noexcept nogil:
    """Copy at most `room` bytes of a part from `at` on. Return how many; -1 if its file cannot be read."""
    cdef OpenFile *entry = file_find(
        &t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation)
    cdef uint64_t want = part.length - at
    cdef ssize_t n
    if want > room:
        want = room
    while entry != NULL:
        n = pread(entry.fd, into, want, <long>(part.position + at))
        if n > 0 or want == 0:
            return n
        if n == 0 or errno != EINTR:
            return -1
    return -1

cdef int64_t copy_answer(ChannelTurn *t, Channel *c, uint8_t *into, uint64_t room) noexcept nogil:
    """Copy at most `room` unwritten bytes of the answer. Return how many; -1 if a file cannot be read."""
    cdef ReplySlot *a = &c.request.answer
    cdef uint8_t *base = answer_base(&t.peers, a)
    cdef uint64_t at = c.part_sent, copied = 0, want
    cdef uint32_t number = c.part
    cdef Part *part
    cdef int64_t n
    if a.kind == SlotKind.SEND:
        want = a.length - at
        if want > room:
            want = room
        memcpy(into, base + a.block + a.position + at, want)
        return want
    while number < a.length and copied < room:
        part = parts_of(&t.peers, a) + number
        if part.kind == PartKind.PART_FILE:
            n = read_part(t, part, at, into + copied, room - copied)
            if n < 0:
                return -1
        else:
            n = part.length - at
            if <uint64_t>n > room - copied:
                n = room - copied
            memcpy(into + copied, base + a.block + part.position + at, n)
        copied += n
        at += n
        if at == part.length:
            number += 1
            at = 0
    return copied

cdef uint64_t copy_window(ChannelTurn *t, Channel *c, uint8_t *into, uint64_t room) noexcept nogil:
    """Copy at most `room` unwritten bytes of the answers to the window's oldest requests. Return how many."""
    cdef uint64_t copied = 0, want
    cdef uint32_t i
    cdef WindowEntry *e
    cdef ReplySlot *a
    for i in range(c.window_count):
        e = entry_at(&t.window, c, i)
        a = &e.request.answer
        if not e.answered or a.kind != SlotKind.SEND or copied == room:
            break
        want = a.length - e.sent
        if want > room - copied:
            want = room - copied
        memcpy(into + copied, answer_base(&t.peers, a) + a.block + a.position + e.sent, want)
        copied += want
    return copied

cdef bint advance_answer(ChannelTurn *t, Channel *c, uint64_t n) noexcept nogil:
    """Count `n` more bytes of the answer as written. Return whether all of it is written."""
    cdef ReplySlot *a = &c.request.answer
    cdef Part *part
    counter_add(t.counters, Counter.COUNT_BYTES_OUT, n)
    c.part_sent += n
    if a.kind == SlotKind.SEND:
        return c.part_sent == a.length
    while c.part < a.length:
        part = parts_of(&t.peers, a) + c.part
        if c.part_sent < part.length:
            return False
        c.part_sent -= part.length
        c.part += 1
    return True


cdef enum:
    # Encrypt this much at a time and write it at once: enough for a wake-up of the client, and little enough
    # that it decrypts while the next chunk is encrypted. With TLS's overhead it is two segments of the
    # loopback interface (65,483 bytes), nearly full, which is also the most that a network card is given at
    # once to cut into packets. With 64 KiB a segment of a hundred bytes followed each full one, with its
    # own way through TCP and its own wake-up.
    CHUNK_BYTES = 126 << 10
    # The first chunk is one segment: the client begins earlier, and for a nearly full socket less is kept.
    FIRST_CHUNK_BYTES = 63 << 10

cdef class TlsSaslTurn:
    """Python's access to the channels of TLS and SASL listeners.

    Python may use the number of a channel until the turn reports that channel as closed.
    """
    cdef ProcessorTurn turn
    cdef ChannelTurn *t

    def __init__(self, ProcessorTurn turn):
        self.turn = turn
        self.t = turn.t

    cdef Channel *_channel(self, uint32_t channel) except NULL:
        if channel >= self.t.channel_places:
            raise IndexError(channel)
        return &self.t.channels[channel]

    def begin(self, uint32_t channel) -> None:
        """Leave a new connection to Python until `opened` is called. Python has to close its descriptor."""
        cdef Channel *c = self._channel(channel)
        c.secure = NEGOTIATING
        c.owned = 1

    def take(self) -> list[tuple[int, int, bool]]:
        """Return (channel, connection id, has an answer to write) of each channel that Python must serve."""
        cdef ChannelTurn *t = self.t
        cdef Channel *c
        cdef uint32_t i
        t.now_ns = monotonic_ns()
        out = []
        for i in range(t.lists.marked_count):
            c = &t.channels[t.lists.marked[i]]
            c.marked = 0
            if c.secure and c.state != ChannelState.CHANNEL_FREE and c.state != ChannelState.CHANNEL_CLOSED:
                out.append((c.index, c.connection, self._has_answer(c)))
        t.lists.marked_count = 0
        return out

    def renewal(self, uint32_t channel) -> tuple[int, bytes, bytes] | None:
        """Return (fd, frame, bytes after the frame) of a SaslHandshake on an open channel, or None."""
        cdef Channel *c = self._channel(channel)
        cdef char *base
        if c.secure != NEGOTIATING or c.request.block == 0:
            return None
        if c.request.needed < 4 or c.received < c.request.needed:
            return None
        base = <char *>self.t.memory.arena.base
        frame = (base + c.request.block)[4 : c.request.needed]
        rest = (base + c.stash)[c.stash_at : c.stash_received] if c.stash else b""
        free_request(&self.t.memory, &c.request)
        free_stash(&self.t.memory, c)
        c.received = c.request.needed = 0
        c.owned = 1
        return c.fd, frame, rest

    def opened(self, uint32_t channel, bint native, uint64_t expires_ns) -> None:
        """Open an authenticated channel for requests. If `native` (no TLS), the turn does its I/O."""
        cdef Channel *c = self._channel(channel)
        c.secure = 0 if native else MOVED
        c.owned = not native
        c.expires_ns = expires_ns
        c.readable = 1          # bytes that came with the last token have had their edge
        defer(&self.t.lists, c, True)

    def software(self, uint32_t channel, bytes name, bytes version) -> None:
        """Note the client's software, which an ApiVersions request before authentication has named."""
        cdef Channel *c = self._channel(channel)
        session_software(
            &self.t.sessions[channel], <const uint8_t *>name, len(name),
            <const uint8_t *>version, len(version))
        count_client(&self.t.metering, c)

    def room(self, uint32_t channel) -> memoryview | None:
        """Return memory for decrypted bytes of the channel; None if nothing may be read now."""
        cdef Channel *c = self._channel(channel)
        cdef uint64_t room
        if c.secure != MOVED or c.state != ChannelState.CHANNEL_READING:
            return None
        if c.request.block == 0 or not may_receive(self.t, c):
            return None
        room = frame_room(self.t, c)
        if room == 0:
            return None
        return PyMemoryView_FromMemory(
            <char *>(self.t.memory.arena.base + c.request.block + c.received), room, PyBUF_WRITE)

    def received(self, uint32_t channel, uint32_t n) -> bool:
        """Process `n` bytes that were written into the memory of `room`. Return whether more may be read.

        When a frame is complete, its request enters the window or mutes the channel.
        """
        cdef Channel *c = self._channel(channel)
        cdef int framed
        c.received += n
        c.moved_bytes += n
        active(&self.t.activity, c, self.t.now_ns)
        counter_add(self.t.counters, Counter.COUNT_READS, 1)
        counter_add(self.t.counters, Counter.COUNT_BYTES_IN, n)
        framed = frame_received(self.t, c)
        while framed == 2 and may_receive(self.t, c):
            framed = next_frame(self.t, c)
        if framed == -2:
            memory_full(self.t, c)
        return framed == 0

    def nothing(self, uint32_t channel) -> None:
        """Note that neither the socket nor OpenSSL has bytes. Epoll will report the next byte."""
        cdef Channel *c = self._channel(channel)
        c.readable = 0
        if c.state == ChannelState.CHANNEL_READING and c.received == 0:
            free_request(&self.t.memory, &c.request)

    def ended(self, uint32_t channel) -> None:
        """Note that the client sends no more. The connection closes after the answers of its window."""
        stream_ended(self.t, self._channel(channel))

    cdef inline bint _has_answer(self, Channel *c) noexcept:
        return c.state == ChannelState.CHANNEL_SENDING or window_holds_answers(&self.t.window, c)

    def send(self, uint32_t channel, TlsPipe pipe, uint64_t most) -> None:
        """Encrypt and write the channel's answer, or the next answers of its window, in chunks.

        Stop when all is sent, the socket is full, or `most` bytes are written. A chunk counts as sent when it
        is written completely. Raise what the pipe raises.
        """
        cdef ChannelTurn *t = self.t
        cdef Channel *c = self._channel(channel)
        cdef uint64_t moved = 0, written
        cdef int64_t n
        cdef uint8_t[CHUNK_BYTES] chunk
        while self._flush(c, pipe):
            written, pipe.in_flight = pipe.in_flight, 0
            if written and self._sent(c, written):
                return
            moved += written
            if moved >= most:
                defer(&t.lists, c, True)
                return
            if not self._has_answer(c):
                return
            n = self._copy(c, chunk, CHUNK_BYTES if moved else FIRST_CHUNK_BYTES)
            if n < 0:
                close_channel(t, c, CloseReason.CLOSED_NO_FILE, 0)
            if n <= 0:
                return
            pipe.in_flight = n
            pipe.write_encrypted(chunk, n)
            if pipe.waiting() < <uint64_t>n:
                c.moved_bytes += n - pipe.waiting()

    cdef int64_t _copy(self, Channel *c, uint8_t *into, uint64_t room) noexcept:
        return copy_window(self.t, c, into, room) if c.window_count else copy_answer(self.t, c, into, room)

    cdef bint _flush(self, Channel *c, TlsPipe pipe) except -1:
        """Write the pipe's encrypted bytes, and count them as progress. Return whether all are written."""
        cdef uint64_t before = pipe.waiting()
        cdef bint done = pipe.write_left()
        if before > pipe.waiting():
            c.moved_bytes += before - pipe.waiting()
            active(&self.t.activity, c, self.t.now_ns)
        return done

    cdef bint _sent(self, Channel *c, uint64_t n):
        """Count `n` bytes of answers as written. Return whether the channel has nothing more to write."""
        cdef bint was_full
        counter_add(self.t.counters, Counter.COUNT_WRITES, 1)
        active(&self.t.activity, c, self.t.now_ns)
        if c.window_count:
            was_full = window_is_full(&self.t.window, c)
            window_written(self.t, c, n)
            if end_written(self.t, c):
                after_answers_written(self.t, c, was_full)
            return not self._has_answer(c)
        if not advance_answer(self.t, c, n):
            return False
        counter_add(self.t.counters, Counter.COUNT_RESPONSES, 1)
        release_answer(&self.t.peers, &self.t.files, c)
        finish_request(self.t, c)
        return True

    @property
    def timed(self) -> bool:
        """Return whether some client has a quota on request time. If so, the caller must call `spent`."""
        return self.t.metering.timed

    def spent(self, uint32_t channel, uint64_t connection, uint64_t ns) -> None:
        """Add `ns` of Python's time to a connection's request time, if the connection is not closed."""
        cdef Channel *c = self._channel(channel)
        if c.connection == connection:
            c.network_ns += ns

    def later(self, uint32_t channel) -> None:
        """Serve the channel again in the next turn, because it had its share of this turn."""
        defer(&self.t.lists, self._channel(channel), True)

    def active(self, uint32_t channel) -> None:
        active(&self.t.activity, self._channel(channel), self.t.now_ns)

    def close(self, uint32_t channel, uint32_t reason, int64_t detail) -> None:
        close_channel(self.t, self._channel(channel), reason, detail)

    def done(self) -> None:
        """Give the queued requests to the handlers now."""
        dispatch(self.t, &self.turn.prepared)
        publish(self.t)
