"""Repairs after the death of a handler or a log worker."""
from libc.stdint cimport uint32_t

from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef void mend_handler(ChannelTurn *t, uint32_t number) noexcept nogil
cdef void mend_log(ChannelTurn *t) noexcept nogil
