"""Handles a used-up arena of requests: channels wait for memory, and the longest waiting goes on first.

(Kafka: Selector's muting while it is out of memory.)
"""
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.peers cimport replies_are_out
from mpbroker.network.processor.system_calls cimport epoll_event

cdef void feed_starved(ChannelTurn *t) noexcept nogil
cdef void close_stalled(ChannelTurn *t) noexcept nogil
cdef void shuffle(ChannelTurn *t, epoll_event *events, int count) noexcept nogil

cdef inline bint may_be_stalled(ChannelTurn *t) noexcept nogil:
    """Return whether channels or handlers wait for memory or files that stalled channels may hold."""
    return (
        t.memory.dry_since_ns or t.lists.starved_count or t.lists.unopened_count
        or replies_are_out(&t.peers)
    )
