from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memmove, memset

from mpbroker.ipc.counters cimport Counter
from mpbroker.ipc.slots cimport ReplySlot, RequestSlot, ReturnSlot, SlotKind
from mpbroker.network.processor.channel cimport Channel, Request
from shm.atomics cimport load_acquire, load_relaxed
from shm.counters cimport counter_add
from shm.ring cimport Slot, ring_want_space

from mpbroker.ipc import topology

cdef enum:
    HEAVY_COST = 1 << 20            # more than any number of requests that can wait

assert FIRST_PROCESSOR == topology.FIRST_PROCESSOR and CONTROL_PROCESSOR == topology.CONTROL_PROCESSOR
assert REQUEST_RING_PLACES == topology.REQUEST_RING_SLOTS
assert (
    FIRST_HANDLER == topology.FIRST_HANDLER and LOG_PROCESS == topology.LOG
    and LOGS_MAX == topology.MAX_LOG_WORKERS and HANDLERS_MAX == len(topology.HANDLERS)
)


# ---- requests that handlers have not taken

cdef void count_taken_by(Peers *p, Peer *peer) noexcept nogil:
    """Count the requests that the handler has taken since the last call, and lower `untaken` by their number.

    If `untaken` is 0, `is_request` is not read: its entries may belong to later descriptors.
    """
    cdef uint64_t head = load_acquire(peer.requests.head)
    cdef uint32_t taken = 0
    if peer.untaken == 0:
        peer.counted = head
        return
    while peer.counted != head:
        taken += peer.is_request[peer.counted & (REQUEST_RING_PLACES - 1)]
        peer.counted += 1
    peer.untaken -= taken
    p.untaken -= taken

cdef void count_taken(Peers *p) noexcept nogil:
    cdef uint32_t h
    for h in range(p.handler_count):
        if p.handlers[h].known and p.handlers[h].untaken:
            count_taken_by(p, &p.handlers[h])

cdef void forget_untaken(Peers *p, Peer *peer) noexcept nogil:
    """Stop counting the handler's untaken requests, because its ring is bound again or closed."""
    p.untaken -= peer.untaken
    peer.untaken = 0
    peer.counted = load_acquire(peer.requests.head)


# ---- leases

cdef void give_back(Peers *p, ReplySlot *a) noexcept nogil:
    """Return a reply block to the handler that owns it. Do nothing if this processor owns the block."""
    cdef Slot slot
    cdef ReturnSlot *r = <ReturnSlot *>&slot
    cdef Peer *peer
    if a.block == 0 or a.owner < FIRST_HANDLER:
        return
    peer = &p.handlers[a.owner - FIRST_HANDLER]
    if not peer.alive:
        return                      # its arena is reset as a whole
    memset(&slot, 0, sizeof(slot))
    r.kind = SlotKind.RETURN
    r.owner = a.owner
    r.block = a.block
    r.generation = a.generation
    if not stage(p, peer, &slot):
        counter_add(p.counters, Counter.COUNT_RING_FULL, 1)
        owe(peer, &slot)

cdef void owe(Peer *peer, Slot *slot) noexcept nogil:
    """Keep a descriptor that did not fit into a handler's ring. It goes first when the ring has room."""
    cdef Slot *grown
    if peer.owed_count == peer.owed_places:
        grown = <Slot *>realloc(peer.owed, (peer.owed_places * 2 + 64) * sizeof(Slot))
        if grown == NULL:
            # out of memory: the handler gets the block back when it fences this process
            return
        peer.owed = grown
        peer.owed_places = peer.owed_places * 2 + 64
    peer.owed[peer.owed_count] = slot[0]
    peer.owed_count += 1
    if not peer.wants_room:
        peer.wants_room = True
        ring_want_space(&peer.requests, True)

cdef void pay(Peers *p, Peer *peer) noexcept nogil:
    cdef uint32_t paid = 0
    while paid < peer.owed_count and stage(p, peer, &peer.owed[paid]):
        paid += 1
    if paid:
        # It may include a cancel, which must not wait for the handler's next wake-up.
        peer.touched = True
        memmove(peer.owed, peer.owed + paid, (peer.owed_count - paid) * sizeof(Slot))
        peer.owed_count -= paid

cdef void cancel(Peers *p, Channel *c, Request *request) noexcept nogil:
    """Cancel a parked (waiting) request whose client has disconnected. Its handler answers with a NOOP."""
    cdef Slot slot
    cdef Peer *peer = &p.handlers[request.handler]
    fill_cancel(p, c, request, &slot)
    if stage(p, peer, &slot):
        peer.touched = True
    else:
        owe(peer, &slot)

cdef void fill_cancel(Peers *p, Channel *c, Request *request, Slot *slot) noexcept nogil:
    cdef RequestSlot *r = <RequestSlot *>slot
    memset(slot, 0, sizeof(Slot))
    r.kind = SlotKind.CANCEL
    r.processor = p.process
    r.channel = c.index
    r.connection = c.connection
    r.request = request.number


# ---- load

cdef Peer *least_loaded(Peers *p) noexcept nogil:
    """Return the handler with room that has the least load, if possible without a heavy request; NULL if no
    handler has room.

    A tie goes to the handler that got the last batch: its caches are warm (measured: 10 % more requests).
    """
    cdef Peer *best = NULL
    cdef Peer *peer
    cdef uint64_t cost, least = <uint64_t>-1
    cdef uint32_t i, h
    for i in range(p.handler_count):
        h = (p.last_handler + i) % p.handler_count
        peer = &p.handlers[h]
        if not takes_requests(peer):
            continue
        cost = peer.load + (HEAVY_COST if has_heavy(peer) else 0)
        if cost < least:
            least = cost
            best = peer
    return best

cdef bint replies_are_out(Peers *p) noexcept nogil:
    """Return whether any handler waits for room in its reply arena, because clients do not read answers."""
    cdef uint32_t h
    for h in range(p.handler_count):
        if load_relaxed(&p.replies_out[h]):
            return True
    return False
