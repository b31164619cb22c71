"""Writes answers, which consist of bytes of an arena block and slices of segment files."""
from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef enum:
    # Bytes per channel and turn, so that no channel starves another.
    SENT_PER_TURN_MAX = 1 << 18

cdef void start_sending(ChannelTurn *t, Channel *c) noexcept nogil
cdef void continue_sending(ChannelTurn *t, Channel *c) noexcept nogil
cdef void finish_request(ChannelTurn *t, Channel *c) noexcept nogil
