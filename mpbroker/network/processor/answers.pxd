"""The answer that a channel sends: where the answer's bytes are, and the files that its parts need."""
from libc.stdint cimport uint8_t, uint64_t

from mpbroker.ipc.slots cimport Part, ReplySlot
from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.files cimport FileTable
from mpbroker.network.processor.peers cimport FIRST_HANDLER, Peers

cdef bint files_are_open(Peers *p, FileTable *files, Channel *c) noexcept nogil
cdef void use_files(Peers *p, FileTable *files, Channel *c) noexcept nogil
cdef void release_answer(Peers *p, FileTable *files, Channel *c) noexcept nogil
cdef uint64_t answer_bytes(Peers *p, Channel *c) noexcept nogil

cdef inline uint8_t *answer_base(Peers *p, ReplySlot *a) noexcept nogil:
    """Return the start of the arena that has the answer: this processor's or a handler's."""
    return p.arena.base if a.owner == p.process else p.handlers[a.owner - FIRST_HANDLER].arena

cdef inline Part *parts_of(Peers *p, ReplySlot *a) noexcept nogil:
    return <Part *>(answer_base(p, a) + a.block + a.position)
