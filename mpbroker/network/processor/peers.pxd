"""The handlers and log workers of a processor: their rings, their requests, and blocks lent between arenas.

A request or returned block goes to a handler as a descriptor, a slot of the handler's ring. If the ring is
full, the descriptor waits in a list, and goes first when the ring has room.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from mpbroker.ipc.slots cimport ReplySlot, RequestSlot, SlotKind
from mpbroker.network.processor.channel cimport NO_HANDLER, Channel, Request
from shm.arena cimport ArenaRef
from shm.atomics cimport load_acquire, load_relaxed
from shm.counters cimport CountersRef
from shm.doorbell cimport BellRef
from shm.ring cimport RingRef, Slot, ring_room, ring_stage

cdef enum:
    HANDLERS_MAX = 33           # with those of the control plane
    LOGS_MAX = 7
    REQUEST_RING_PLACES = 1024  # mpbroker.ipc.topology.REQUEST_RING_SLOTS, checked at import
    FIRST_PROCESSOR = 8             # mpbroker.ipc.topology.FIRST_PROCESSOR, checked at import
    CONTROL_PROCESSOR = 24          # mpbroker.ipc.topology.CONTROL_PROCESSOR, checked at import
    FIRST_HANDLER = 25              # mpbroker.ipc.topology.FIRST_HANDLER, checked at import
    LOG_PROCESS = 3                 # mpbroker.ipc.topology.LOG, checked at import

cdef struct Peer:
    uint32_t number             # handler number
    uint32_t process            # process index
    bint known                  # its rings are bound
    bint alive                  # it has a process
    bint leaving                # finishes its requests, and gets no new ones
    bint wants_room             # this process asked for room in `requests`
    RingRef requests            # to the handler
    RingRef answers             # from the handler
    BellRef bell
    uint8_t *arena              # its reply arena
    uint64_t *heavy             # the handler's word: since when it has a heavy request
    uint64_t heavy_until        # position in `requests` after the last heavy request from here
    uint64_t counted            # position up to which `requests` was seen taken
    uint32_t untaken            # requests in the ring from `counted` on
    uint8_t is_request[REQUEST_RING_PLACES]
    uint32_t load               # requests with the handler that are not parked
    bint touched                # this turn staged something that the handler must wake up for
    Slot *owed                  # descriptors that did not fit into `requests`
    uint32_t owed_count
    uint32_t owed_places

cdef struct Peers:
    uint32_t process            # process index of this processor
    ArenaRef *arena             # of this processor
    CountersRef *counters
    uint32_t handler_count      # places in use in `handlers`
    uint32_t last_handler       # number of the handler that got the last batch: a tie begins here
    uint32_t last_session_keeper    # number of the handler that was last given a fetch that makes a session
    uint32_t log_count
    uint64_t untaken            # requests given to handlers that have not taken them
    uint64_t *replies_out       # a word per handler: some reply waits for room in its answer ring
    RingRef log_answers[LOGS_MAX]
    BellRef log_bells[LOGS_MAX]
    Peer handlers[HANDLERS_MAX]

cdef void count_taken_by(Peers *p, Peer *peer) noexcept nogil
cdef void count_taken(Peers *p) noexcept nogil
cdef void forget_untaken(Peers *p, Peer *peer) noexcept nogil
cdef void give_back(Peers *p, ReplySlot *a) noexcept nogil
cdef void pay(Peers *p, Peer *peer) noexcept nogil
cdef void cancel(Peers *p, Channel *c, Request *request) noexcept nogil
cdef void fill_cancel(Peers *p, Channel *c, Request *request, Slot *slot) noexcept nogil
cdef Peer *least_loaded(Peers *p) noexcept nogil
cdef bint replies_are_out(Peers *p) noexcept nogil

cdef inline bint stage(Peers *p, Peer *peer, const Slot *slot) noexcept nogil:
    """Put a descriptor into the handler's ring, but do not publish it yet. Return False if the ring is full.

    A request counts as untaken until the handler takes it.
    """
    cdef uint8_t is_request = (<const RequestSlot *>slot).kind == SlotKind.REQUEST
    cdef uint64_t place = peer.requests.staged & (REQUEST_RING_PLACES - 1)
    if peer.requests.staged - peer.counted >= REQUEST_RING_PLACES:
        count_taken_by(p, peer)         # count before the place of an earlier slot is overwritten
    if not ring_stage(&peer.requests, slot):
        return False
    peer.is_request[place] = is_request
    peer.untaken += is_request
    p.untaken += is_request
    return True

cdef inline void answered(Peers *p, Request *r) noexcept nogil:
    """Note that the handler of the request has answered it, and reduce the handler's load."""
    if r.handler != NO_HANDLER:
        if not r.parked and p.handlers[r.handler].load:
            p.handlers[r.handler].load -= 1
        r.handler = NO_HANDLER
    r.parked = 0

cdef inline bint has_heavy(Peer *peer) noexcept nogil:
    """Return whether the handler has a heavy request: one of this processor's in the ring, or one that the
    handler has announced, of any processor.

    A handler announces a heavy request before it takes it from the ring, so none is overlooked.
    """
    return load_acquire(peer.requests.head) < peer.heavy_until or load_relaxed(peer.heavy) != 0

cdef inline bint takes_requests(Peer *peer) noexcept nogil:
    return peer.alive and not peer.leaving and peer.owed_count == 0 and ring_room(&peer.requests) != 0
