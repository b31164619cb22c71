"""The state of the processor's native turn. turn.pyx has the phases of a turn."""
from libc.stdint cimport uint64_t

from mpbroker.ipc.meters cimport Meters
from mpbroker.ipc.session cimport Sessions
from mpbroker.network.processor.api_versions cimport PreparedAnswers
from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.channel_turn cimport ChannelTurn
from mpbroker.network.processor.events cimport Orders
from mpbroker.network.processor.intake cimport Intake


cdef class ProcessorTurn:
    cdef ChannelTurn *t
    cdef Intake intake
    cdef Orders orders
    cdef PreparedAnswers prepared
    cdef object memory
    cdef readonly Sessions sessions
    cdef readonly Meters meters
    cdef list keep
    cdef dict rings
    cdef dict logs
    cdef uint64_t order_now
    cdef uint64_t fence_order_now
    cdef int _turns(self, int timeout_ms, uint64_t longest_ns) except -1
    cdef _reported(self, Channel *c)
