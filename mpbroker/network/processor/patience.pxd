"""Patient requests: heartbeats that bring no news, whose clients wait for nothing in the answer.

Waking a handler, and through it the coordinator, costs more than a heartbeat does. So these requests wait in
the FIFO for company (queue.pxd).
"""
from libc.stdint cimport uint8_t

from mpbroker.network.processor.channel cimport Request

cdef bint is_patient(const uint8_t *frame, const Request *r) noexcept nogil
