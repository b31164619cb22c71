# Writing answers: bytes of an arena block, slices of segment files. Part of turn.pyx.

cdef inline uint8_t *answer_base(ChannelTurn *t, ReplySlot *a) noexcept nogil:
    """Return the arena of an answer: this processor's, for the request's own block, or a handler's."""
    return t.arena.base if a.owner == t.process else t.handlers[a.owner - FIRST_HANDLER].arena

cdef inline Part *parts_of(ChannelTurn *t, ReplySlot *a) noexcept nogil:
    return <Part *>(answer_base(t, a) + a.block + a.position)

cdef void release_answer(ChannelTurn *t, Channel *c) noexcept nogil:
    """End the use of files and the lease of the answer that the channel was sending."""
    cdef ReplySlot *a = &c.request.answer
    cdef Part *part
    cdef OpenFile *entry
    cdef uint32_t i
    if a.kind == SlotKind.SEND_PARTS and c.state == ChannelState.CHANNEL_SENDING:
        for i in range(a.length):
            part = parts_of(t, a) + i
            if part.kind == PartKind.PART_FILE:
                entry = file_find(
                    &t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation)
                if entry != NULL and entry.users:
                    entry.users -= 1
                    t.files.released |= entry.users == 0
    give_back(t, a)

cdef int send_bytes(
    ChannelTurn *t, Channel *c, const uint8_t *bytes, uint64_t length, int flags, uint64_t *budget
) noexcept nogil:
    """Write from `part_sent` on. 1: all written; 0: the socket is full; 2: budget used up; -1: error."""
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
    """Write a slice of a file from the page cache; otherwise like `send_bytes`."""
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
    """Write the answer. 1: all written; 0: wait for the socket; 2: go on next turn; -1: error."""
    cdef ReplySlot *a = &c.request.answer
    cdef Part *part
    cdef uint8_t *base = answer_base(t, a)
    cdef uint64_t budget = SENT_PER_TURN_MAX
    cdef int done, flags
    if a.kind == SlotKind.SEND:
        return send_bytes(t, c, base + a.block + a.position, a.length, 0, &budget)
    while c.part < a.length:
        part = parts_of(t, a) + c.part
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

cdef bint files_are_open(ChannelTurn *t, Channel *c) noexcept nogil:
    """Return whether every slice can be sent. All are checked before the first byte is written."""
    cdef Part *part
    cdef uint32_t i
    for i in range(c.request.answer.length):
        part = parts_of(t, &c.request.answer) + i
        if part.kind == PartKind.PART_FILE:
            if file_find(
                &t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation
            ) == NULL:
                return False
    return True

cdef void use_files(ChannelTurn *t, Channel *c) noexcept nogil:
    cdef Part *part
    cdef uint32_t i
    for i in range(c.request.answer.length):
        part = parts_of(t, &c.request.answer) + i
        if part.kind == PartKind.PART_FILE:
            file_find(
                &t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation
            ).users += 1

cdef void start_sending(ChannelTurn *t, Channel *c) noexcept nogil:
    """Begin to send `c.request.answer`, or wait for its files."""
    c.part = 0
    c.part_sent = 0
    c.marked_ns = 0
    if c.request.answer.kind == SlotKind.SEND_PARTS:
        if not files_are_open(t, c):
            c.state = ChannelState.CHANNEL_OPENING
            await_files(t, c)
            return
        use_files(t, c)
    c.state = ChannelState.CHANNEL_SENDING
    note_size(t, &c.request)
    go_on_sending(t, c)

cdef void go_on_sending(ChannelTurn *t, Channel *c) noexcept nogil:
    cdef int done
    cdef uint64_t begun_ns
    if c.secure:
        mark(t, c)
        return
    begun_ns = begin_timing(t)
    done = send_answer(t, c)
    end_timing(c, begun_ns)
    active(t, c)
    if done == 1:
        counter_add(t.counters, Counter.COUNT_RESPONSES, 1)
        release_answer(t, c)
        finish_request(t, c)
    elif done == 2:
        defer(t, c, True)
    elif done < 0:
        close_channel(t, c, CloseReason.CLOSED_RESET, errno)

cdef void finish_request(ChannelTurn *t, Channel *c) noexcept nogil:
    """End a request that was answered, or that wanted no answer."""
    note_finished(t, &c.request)
    free_request(t, &c.request)
    c.state = ChannelState.CHANNEL_READING
    c.received = 0
    c.request.needed = 0
    if mute_event(t, c, RESPONSE_SENT):
        go_on_reading(t, c)
    else:
        close_channel(t, c, CloseReason.CLOSED_ILLEGAL_STATE, c.mute)
