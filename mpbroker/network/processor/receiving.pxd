"""Receives frames into arena blocks, and puts whole requests into the FIFO."""
from libc.stdint cimport uint64_t

from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef int take_from_stash(ChannelTurn *t, Channel *c) noexcept nogil
cdef uint64_t frame_room(ChannelTurn *t, Channel *c) noexcept nogil
cdef int frame_received(ChannelTurn *t, Channel *c) noexcept nogil
cdef void stream_ended(ChannelTurn *t, Channel *c) noexcept nogil
cdef void read_channel(ChannelTurn *t, Channel *c) noexcept nogil
cdef bint may_receive(ChannelTurn *t, Channel *c) noexcept nogil
cdef int next_frame(ChannelTurn *t, Channel *c) noexcept nogil
cdef void memory_full(ChannelTurn *t, Channel *c) noexcept nogil
