"""A handler's table of clients and their quotas, for native code: a lookup by connection takes a few ns.

For a connection without an entry, Python finds the client and its limits, and adds an entry. The entry is
valid for one revision of the connection's session and for one client id. Only Python changes the table, when
no native code runs. The table is not shared. `SharedRates` has the usage, summed over all handlers.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mpbroker.ipc.meters cimport MetersRef
from shm.rates cimport RatesRef

cdef struct Budget:
    uint64_t key                # of the budget in the shared rates; 0: not limited
    double bound                # per second: bytes, or ns of processors and handlers

cdef struct Client:
    uint64_t connection         # 0: a free place
    uint64_t revision
    uint8_t *id
    uint32_t id_length
    bint fetch_limited          # a quota limits fetches, so Python handles every fetch
    Budget produce
    Budget request

cdef struct ClientsRef:
    bint on                     # some quota exists: every client must be known
    Client *places
    uint64_t mask
    uint64_t count
    RatesRef *rates
    MetersRef *meters           # totals of all clients, for metrics
    uint64_t unmeasured         # events that found no room in the rates

cdef Client *client_of(
    ClientsRef *clients, uint64_t connection, uint64_t revision, const uint8_t *id, uint32_t id_length
) noexcept nogil
cdef int64_t charge(
    ClientsRef *clients, int kind, uint64_t key, double bound, int64_t value, int64_t now_ms
) noexcept nogil


cdef class Clients:
    cdef ClientsRef ref
    cdef object keep
