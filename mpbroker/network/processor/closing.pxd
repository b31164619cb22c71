"""Closes connections. Handlers may still have requests of a closed channel, and Python a report to read."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from mpbroker.network.processor.channel cimport Channel, WindowEntry
from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef void close_channel(ChannelTurn *t, Channel *c, uint32_t reason, int64_t detail) noexcept nogil
cdef void close_all_of(ChannelTurn *t, int listener) noexcept nogil
cdef void follow_lease(ChannelTurn *t, uint64_t until_ns) noexcept nogil
cdef uint32_t close_idle_channels(ChannelTurn *t, uint64_t before_ns) noexcept nogil
cdef void forget_entry(ChannelTurn *t, Channel *c, WindowEntry *e) noexcept nogil
