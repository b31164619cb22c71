"""Resumes channels after socket events, and decides whether the next turn may sleep."""
from libc.stdint cimport uint32_t, uint64_t

from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef struct Orders:
    # the supervisor's words for this process; `order_seen`, `fence_order_seen`: what Python has seen of them
    uint64_t *order
    uint64_t *fence_order
    uint64_t *evictions_asked   # in the ledger of connections
    uint64_t *evictions_done
    uint64_t order_seen
    uint64_t fence_order_seen

cdef bint is_ordered(Orders *orders) noexcept nogil
cdef bint must_stay_awake(ChannelTurn *t, Orders *orders) noexcept nogil
cdef void socket_event(ChannelTurn *t, Channel *c, uint32_t events) noexcept nogil
cdef void continue_channels(ChannelTurn *t) noexcept nogil
cdef void before_sleep(ChannelTurn *t) noexcept nogil
