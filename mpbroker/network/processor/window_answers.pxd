"""Answers to a window's requests. They come in any order and are written in the order of the requests."""
from libc.stdint cimport uint64_t

from mpbroker.ipc.slots cimport ReplySlot
from mpbroker.network.processor.channel cimport Channel, WindowEntry
from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef void take_entry_answer(ChannelTurn *t, Channel *c, WindowEntry *e, ReplySlot *a) noexcept nogil
cdef void window_written(ChannelTurn *t, Channel *c, uint64_t n) noexcept nogil
cdef bint end_written(ChannelTurn *t, Channel *c) noexcept nogil
cdef void flush_window(ChannelTurn *t, Channel *c) noexcept nogil
cdef void after_answers_written(ChannelTurn *t, Channel *c, bint was_full) noexcept nogil
