from libc.stdint cimport uint32_t, uint64_t

from mpbroker.ipc.slots cimport Part, PartKind, ReplySlot, SlotKind
from mpbroker.network.processor.channel cimport Channel, ChannelState
from mpbroker.network.processor.files cimport FileTable, OpenFile, file_find
from mpbroker.network.processor.peers cimport Peers, give_back


cdef bint files_are_open(Peers *p, FileTable *files, Channel *c) noexcept nogil:
    """Return whether all segment files that the channel's answer needs are open."""
    cdef Part *part
    cdef uint32_t i
    for i in range(c.request.answer.length):
        part = parts_of(p, &c.request.answer) + i
        if part.kind == PartKind.PART_FILE:
            if file_find(
                files, part.slot, part.slot_generation, part.segment_base, part.file_generation
            ) == NULL:
                return False
    return True

cdef void use_files(Peers *p, FileTable *files, Channel *c) noexcept nogil:
    cdef Part *part
    cdef uint32_t i
    for i in range(c.request.answer.length):
        part = parts_of(p, &c.request.answer) + i
        if part.kind == PartKind.PART_FILE:
            file_find(
                files, part.slot, part.slot_generation, part.segment_base, part.file_generation
            ).users += 1

cdef void release_answer(Peers *p, FileTable *files, Channel *c) noexcept nogil:
    """Release the files of the answer that the channel was sending, and return its block to the handler."""
    cdef ReplySlot *a = &c.request.answer
    cdef Part *part
    cdef OpenFile *entry
    cdef uint32_t i
    if a.kind == SlotKind.SEND_PARTS and c.state == ChannelState.CHANNEL_SENDING:
        for i in range(a.length):
            part = parts_of(p, a) + i
            if part.kind == PartKind.PART_FILE:
                entry = file_find(
                    files, part.slot, part.slot_generation, part.segment_base, part.file_generation)
                if entry != NULL and entry.users:
                    entry.users -= 1
                    files.released |= entry.users == 0
    give_back(p, a)

cdef uint64_t answer_bytes(Peers *p, Channel *c) noexcept nogil:
    """Return the size in bytes of the channel's answer, which is made of parts."""
    cdef uint64_t total = 0
    cdef uint32_t i
    for i in range(c.request.answer.length):
        total += (parts_of(p, &c.request.answer) + i).length
    return total
