# The table of open segment files: opening, closing, and the answers that wait for files. Part of turn.pyx. An
# open file that was deleted keeps its disk space, and any open file takes a descriptor. files.pxd has the
# layout of the table.

cdef void place_file(FileTable *files, const OpenFile *file) noexcept nogil:
    cdef uint32_t place = file_hash(file.slot, file.slot_generation, file.segment_base, file.inode)
    while files.places[place].fd >= 0:
        place = (place + 1) & (FILE_PLACES - 1)
    files.places[place] = file[0]
    files.count += 1

cdef int forget_files(FileTable *files) except -1:
    """Close the older half of the files that no channel sends from or waits for; return how many."""
    cdef uint32_t i
    cdef OpenFile *file
    idle = []
    for i in range(FILE_PLACES):
        file = &files.places[i]
        if file.fd >= 0 and not file.users and file.used < files.wanted_from:
            idle.append((file.used, i))
    idle.sort()
    del idle[(len(idle) + 1) // 2 :]
    for _, i in idle:
        close(files.places[i].fd)
        files.places[i].fd = -1
    if idle:
        place_anew(files)
    return len(idle)

cdef bint has_room(FileTable *files, uint32_t more) except -1:
    """Return whether `more` further files may be open, after closing idle ones if needed."""
    if files.count + more > files.most // 2:
        forget_files(files)
    while files.count + more > files.most and forget_files(files):
        pass
    return files.count + more <= files.most

cdef void place_anew(FileTable *files) noexcept nogil:
    """Place all entries again after closings: an empty place ends a search."""
    cdef OpenFile kept[FILE_PLACES]
    cdef uint32_t count = 0, i
    for i in range(<uint32_t>FILE_PLACES):
        if files.places[i].fd >= 0:
            kept[count] = files.places[i]
            count += 1
            files.places[i].fd = -1
    files.count = 0
    for i in range(count):
        place_file(files, &kept[i])

cdef void close_deleted_files(FileTable *files) noexcept nogil:
    """Close files that were deleted, unless a channel is sending from them."""
    cdef struct_stat status
    cdef uint32_t i, closed = 0
    for i in range(<uint32_t>FILE_PLACES):
        if files.places[i].fd < 0 or files.places[i].users:
            continue
        if fstat(files.places[i].fd, &status) == 0 and status.st_nlink == 0:
            close(files.places[i].fd)
            files.places[i].fd = -1
            closed += 1
    if closed:
        place_anew(files)

cdef void look_at_files(ChannelTurn *t) noexcept nogil:
    """Close deleted files once a second; let waiting answers try again, as descriptors may have come free."""
    if t.next_files_look_ns >= t.now_ns:
        return
    t.next_files_look_ns = t.now_ns + FILES_LOOK_NS
    t.files.released = True
    close_deleted_files(&t.files)

cdef inline bint may_open(ChannelTurn *t) noexcept nogil:
    """Return whether an answer waits for files and was not looked at, or there may be room now."""
    return t.opening_count > t.unopened_count or (t.unopened_count and t.files.released)

cdef inline void await_files(ChannelTurn *t, Channel *c) noexcept nogil:
    t.opening[t.opening_count] = c.index
    t.opening_count += 1


cdef class TurnFiles:
    """The turn's table of segment files, and the answers that wait for files that are not open.

    Serve one channel at a time: `missing`, then `resume`, `ask_again` or `wait`.
    """
    cdef ProcessorTurn turn
    cdef ChannelTurn *t

    def __init__(self, ProcessorTurn turn):
        self.turn = turn
        self.t = turn.t

    def limit(self, uint32_t most) -> None:
        """Allow `most` open files; beyond half of that, idle ones are closed."""
        self.t.files.most = min(most, <uint32_t>OPEN_FILES_MAX)

    def opening(self) -> list[int]:
        """Return the channels whose answers wait for files, the longest waiting first."""
        cdef ChannelTurn *t = self.t
        cdef uint32_t i
        out = dict.fromkeys(
            t.opening[i] for i in range(t.opening_count)
            if t.channels[t.opening[i]].state == ChannelState.CHANNEL_OPENING
        )
        t.opening_count = t.unopened_count = 0
        t.files.released = False
        return list(out)

    def missing(self, uint32_t channel) -> list[tuple[int, int, int, int, bytes]] | None:
        """Return the files to open for the channel's answer: [(slot, slot_generation, segment_base, inode,
        path)].

        There is room for them, and its open files stay open. None: the channel has to wait, or is closed.
        """
        cdef ChannelTurn *t = self.t
        cdef Channel *c = &t.channels[channel]
        cdef uint8_t *base
        cdef Part *part
        cdef uint32_t i
        if c.state != ChannelState.CHANNEL_OPENING:
            return None
        t.files.wanted_from = t.files.clock + 1
        needed = set()
        missing = {}
        base = answer_base(t, &c.request.answer)
        for i in range(c.request.answer.length):
            part = parts_of(t, &c.request.answer) + i
            if part.kind != PartKind.PART_FILE:
                continue
            name = (part.slot, part.slot_generation, part.segment_base, part.file_generation)
            needed.add(name)
            if file_find(
                &t.files, part.slot, part.slot_generation, part.segment_base, part.file_generation
            ) == NULL:
                missing[name] = (<char *>base)[
                    c.request.answer.block + part.path : c.request.answer.block + part.path + part.path_length
                ]
        if len(needed) > t.files.most:
            close_channel(t, c, CloseReason.CLOSED_MANY_FILES, len(needed))
            publish(t)
            return None
        if not has_room(&t.files, len(missing)):
            self.wait(channel)
            return None
        return [(*name, path) for name, path in missing.items()]

    def opened(
        self, uint32_t slot, uint32_t slot_generation, int64_t segment_base, uint64_t inode, int fd
    ) -> None:
        """Hand an open segment file to the table, which closes it after a long time without use."""
        cdef FileTable *files = &self.t.files
        cdef OpenFile file
        cdef OpenFile *known = file_find(files, slot, slot_generation, segment_base, inode)
        if known != NULL or files.count >= OPEN_FILES_MAX:
            close(fd)
            return
        files.clock += 1
        file.slot, file.slot_generation, file.segment_base, file.inode = (
            slot, slot_generation, segment_base, inode)
        file.fd, file.users, file.used = fd, 0, files.clock
        place_file(files, &file)

    def forget(self) -> int:
        """Close unused files; return how many. For a process that is out of descriptors."""
        return forget_files(&self.t.files)

    def wait(self, uint32_t channel) -> None:
        """Let the channel wait for room or a descriptor: until other answers end, or for a second."""
        cdef Channel *c = &self.t.channels[channel]
        if c.state != ChannelState.CHANNEL_OPENING:
            return
        if c.ended:
            close_channel(self.t, c, CloseReason.CLOSED_BY_PEER, 0)
            publish(self.t)
            return
        await_files(self.t, c)
        self.t.unopened_count = self.t.opening_count

    def resume(self, uint32_t channel) -> None:
        """Send the channel's answer: its files are open."""
        cdef Channel *c = &self.t.channels[channel]
        if c.state != ChannelState.CHANNEL_OPENING:
            return
        start_sending(self.t, c)
        publish(self.t)

    def ask_again(self, uint32_t channel) -> None:
        """Give the request to a handler again, at most three times: a slice's file was replaced."""
        cdef Channel *c = &self.t.channels[channel]
        if c.state != ChannelState.CHANNEL_OPENING:
            return
        c.request.open_tries += 1
        if c.request.open_tries >= OPEN_TRIES_MAX:
            close_channel(self.t, c, CloseReason.CLOSED_NO_FILE, 0)
            return
        if not enter_arena(self.t, c):
            close_channel(self.t, c, CloseReason.CLOSED_NO_MEMORY, 0)
            return
        give_back(self.t, &c.request.answer)
        if c.timer:                 # the next answer brings its own throttle
            end_throttle(self.t, c)
        c.state = ChannelState.CHANNEL_WAITING
        self.t.next_request += 1
        c.request.number = self.t.next_request
        enqueue(self.t, c)
        self.t.soon = True
