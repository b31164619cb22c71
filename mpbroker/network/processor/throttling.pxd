"""Starts and ends throttles, and unmutes channels whose answer is written and whose throttle is over."""
from mpbroker.ipc.slots cimport ReplySlot
from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef bint start_throttle(ChannelTurn *t, Channel *c, ReplySlot *a) noexcept nogil
cdef void end_throttle(ChannelTurn *t, Channel *c) noexcept nogil
cdef void end_throttles(ChannelTurn *t) noexcept nogil
cdef void unmute(ChannelTurn *t, Channel *c) noexcept nogil
