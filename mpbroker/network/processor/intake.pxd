"""Takes new connections from the acceptor and gives each a channel.

The turn serves new connections of PLAINTEXT listeners for which Python has called `serve_plain`. Python
decides about connections of other listeners, when a limit is reached, and after every error.
"""
from libc.stdint cimport uint8_t, uint32_t

from mpbroker.network.handover cimport Handover
from mpbroker.network.processor.channel_turn cimport ChannelTurn

cdef enum:
    LISTENERS = 256             # mpbroker.config.listeners.MAX_LISTENERS, checked at import
    NO_PLACE = -1
    NO_SOCKET = -2
    IS_PLAIN = 1
    IS_PRIVILEGED = 2

cdef struct Intake:
    int handover_fd
    Handover handed             # the last message taken from it, and its socket
    int handed_fd
    bint handed_waits           # `handed` is for Python
    uint8_t listener_kinds[LISTENERS]   # IS_PLAIN, IS_PRIVILEGED; 0: Python serves its connections
    uint32_t connections_max

cdef int open_channel(ChannelTurn *t, int fd, int listener, int protocol, bint privileged) noexcept nogil
cdef void take_connections(Intake *intake, ChannelTurn *t) noexcept nogil
