"""The acceptors of a processor, and the ledger by which they count the processor's connections."""
from mpbroker.ipc.connections cimport LedgerRef, ledger_waits
from shm.doorbell cimport BellRef, bell_ring

cdef enum:
    ACCEPTORS = 2               # mpbroker.ipc.topology.ACCEPTORS, checked at import

cdef struct Acceptors:
    LedgerRef ledger            # of this processor's connections
    BellRef acceptor_bells[ACCEPTORS]
    bint made_room              # a connection was taken or closed: an acceptor may wait for that

cdef inline void ring_acceptors(Acceptors *a) noexcept nogil:
    """Ring each acceptor that waits for room in a processor, or for a closed connection."""
    cdef int i
    a.made_room = False
    for i in range(ACCEPTORS):
        if ledger_waits(&a.ledger, i):
            bell_ring(&a.acceptor_bells[i])
