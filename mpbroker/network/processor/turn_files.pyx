"""Python's access to the turn's table of segment files: Python opens the files that answers wait for."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from posix.unistd cimport close

from mpbroker.ipc.slots cimport Part, PartKind
from mpbroker.network.processor.answers cimport answer_base, parts_of
from mpbroker.network.processor.channel cimport Channel, ChannelState, CloseReason
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.closing cimport close_channel
from mpbroker.network.processor.dispatch cimport publish
from mpbroker.network.processor.files cimport (
    OPEN_FILES_MAX, FileTable, OpenFile, file_find, forget_files, has_room, place_file,
)
from mpbroker.network.processor.lists cimport await_files, move
from mpbroker.network.processor.memory cimport enter_arena
from mpbroker.network.processor.peers cimport give_back
from mpbroker.network.processor.queue cimport enqueue
from mpbroker.network.processor.sending cimport start_sending
from mpbroker.network.processor.throttling cimport end_throttle
from mpbroker.network.processor.turn cimport ProcessorTurn

cdef enum:
    OPEN_TRIES_MAX = 3

FILES_MAX = OPEN_FILES_MAX


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
        """Allow `most` open files. Idle files are closed when more than half of `most` would be open."""
        self.t.files.most = min(most, <uint32_t>OPEN_FILES_MAX)

    def opening(self) -> list[int]:
        """Return the channels whose answers wait for files, the longest waiting first."""
        cdef ChannelTurn *t = self.t
        cdef uint32_t i
        out = dict.fromkeys(
            t.lists.opening[i] for i in range(t.lists.opening_count)
            if t.channels[t.lists.opening[i]].state == ChannelState.CHANNEL_OPENING
        )
        t.lists.opening_count = t.lists.unopened_count = 0
        t.files.released = False
        return list(out)

    def missing(self, uint32_t channel) -> list[tuple[int, int, int, int, bytes]] | None:
        """Return the files to open for the channel's answer: [(slot, slot_generation, segment_base, inode,
        path)].

        The table has room for them, and open files of the answer stay open. Return None if the channel has to
        wait for room, or is closed.
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
        base = answer_base(&t.peers, &c.request.answer)
        for i in range(c.request.answer.length):
            part = parts_of(&t.peers, &c.request.answer) + i
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
        """Put an open segment file into the table, which owns the descriptor from now on."""
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
        """Close half of the unused files, because the process is out of descriptors; return how many."""
        return forget_files(&self.t.files)

    def wait(self, uint32_t channel) -> None:
        """Let the channel wait for room in the table or a descriptor, for a second at most."""
        cdef Channel *c = &self.t.channels[channel]
        if c.state != ChannelState.CHANNEL_OPENING:
            return
        if c.ended:
            close_channel(self.t, c, CloseReason.CLOSED_BY_PEER, 0)
            publish(self.t)
            return
        await_files(&self.t.lists, c)
        self.t.lists.unopened_count = self.t.lists.opening_count

    def resume(self, uint32_t channel) -> None:
        """Send the channel's answer. Its files must be open."""
        cdef Channel *c = &self.t.channels[channel]
        if c.state != ChannelState.CHANNEL_OPENING:
            return
        start_sending(self.t, c)
        publish(self.t)

    def ask_again(self, uint32_t channel) -> None:
        """Let a handler repeat a fetch whose segment file was replaced; the third time, close the channel."""
        cdef Channel *c = &self.t.channels[channel]
        if c.state != ChannelState.CHANNEL_OPENING:
            return
        c.request.open_tries += 1
        if c.request.open_tries >= OPEN_TRIES_MAX:
            close_channel(self.t, c, CloseReason.CLOSED_NO_FILE, 0)
            return
        if not enter_arena(&self.t.memory, c):
            close_channel(self.t, c, CloseReason.CLOSED_NO_MEMORY, 0)
            return
        give_back(&self.t.peers, &c.request.answer)
        if c.timer:                 # the next answer brings its own throttle
            end_throttle(self.t, c)
        move(&self.t.lists, c, ChannelState.CHANNEL_WAITING)
        self.t.next_request += 1
        c.request.number = self.t.next_request
        enqueue(&self.t.queue, c)
        self.t.lists.soon = True
