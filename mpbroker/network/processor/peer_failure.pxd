"""Repairs after the death of a handler or a log worker."""
from libc.stdint cimport uint32_t

from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef void handler_died(ChannelTurn *t, uint32_t number) noexcept nogil
cdef void log_worker_died(ChannelTurn *t) noexcept nogil
