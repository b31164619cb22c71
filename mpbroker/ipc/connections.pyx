"""The ledger of a processor's connections, as acceptors, the processor and the supervisor use it.

`connections.pxd` describes its layout.
"""
from libc.string cimport memcpy, memset

from mpbroker.ipc.connections cimport (
    ADDRESS_BYTES, CLEARED_AT, EVICTIONS_ASKED_AT, EVICTIONS_DONE_AT, HANDED_AT, CHANGES_END_AT,
    CHANGE_PLACES, PENDING_AT, PENDING_PLACES, ROW_BYTES, ROWS_AT, ROWS_USED_AT, TAKEN_AT, WAITING_AT,
    LedgerRef, Row, ledger_word,
)
from shm.atomics cimport fence_acquire, fence_full, load_acquire, load_relaxed, store_release

assert sizeof(Row) == ROW_BYTES

# The limit is Kafka's: Processor.ConnectionQueueSize.
OUTSTANDING_MAX = 20
assert OUTSTANDING_MAX < PENDING_PLACES


def ledger_bytes(places: int) -> int:
    """Return the size in bytes of the ledger of a processor with `places` channels."""
    return ROWS_AT + places * ROW_BYTES + CHANGE_PLACES * 8


cdef int _length(const unsigned char[::1] address) except -1:
    if address.shape[0] > ADDRESS_BYTES:
        raise ValueError(f"an address has at most {ADDRESS_BYTES} bytes, not {address.shape[0]}")
    return <int>address.shape[0]

cdef void _fill(Row *row, uint64_t ticket, int listener, const uint8_t *address, int length) noexcept nogil:
    store_release(&row.ticket, 0)
    fence_full()
    row.listener = listener
    row.address_bytes = <uint8_t>length
    memcpy(row.address, address, length)
    store_release(&row.ticket, ticket)

cdef object _read(Row *row):
    """Return (ticket, listener number, address) of a row; None if it is empty or is being written."""
    cdef Row copy
    cdef uint64_t ticket = load_acquire(&row.ticket)
    if ticket == 0:
        return None
    memcpy(&copy, row, sizeof(Row))
    fence_acquire()
    if load_relaxed(&row.ticket) != ticket or copy.address_bytes > ADDRESS_BYTES:
        return None
    return ticket, copy.listener, (<char *>copy.address)[:copy.address_bytes]


cdef uint64_t ledger_outstanding(LedgerRef *ledger) noexcept nogil:
    return load_acquire(ledger_word(ledger, HANDED_AT)) - load_acquire(ledger_word(ledger, TAKEN_AT))

cdef uint64_t ledger_hand(LedgerRef *ledger, int listener, const uint8_t *address, int length) noexcept nogil:
    cdef uint64_t ticket = load_relaxed(ledger_word(ledger, HANDED_AT)) + 1
    _fill(&ledger.pending[ticket % PENDING_PLACES], ticket, listener, address, length)
    store_release(ledger_word(ledger, HANDED_AT), ticket)
    return ticket

cdef void ledger_take_back(LedgerRef *ledger) noexcept nogil:
    """Undo the last `ledger_hand`, because the connection was not sent."""
    cdef uint64_t ticket = load_relaxed(ledger_word(ledger, HANDED_AT))
    store_release(ledger_word(ledger, HANDED_AT), ticket - 1)
    store_release(&ledger.pending[ticket % PENDING_PLACES].ticket, 0)

cdef void ledger_open(
    LedgerRef *ledger, int channel, uint64_t ticket, int listener, const uint8_t *address, int length
) noexcept nogil:
    if <uint64_t>channel >= load_relaxed(ledger_word(ledger, ROWS_USED_AT)):
        store_release(ledger_word(ledger, ROWS_USED_AT), channel + 1)
    _fill(&ledger.rows[channel], ticket, listener, address, length)
    _note(ledger, ticket, channel, True)

cdef void ledger_close(LedgerRef *ledger, int channel) noexcept nogil:
    cdef uint64_t ticket = load_relaxed(&ledger.rows[channel].ticket)
    if ticket:
        store_release(&ledger.rows[channel].ticket, 0)
        _note(ledger, ticket, channel, False)

cdef void ledger_take(LedgerRef *ledger, uint64_t ticket) noexcept nogil:
    store_release(ledger_word(ledger, TAKEN_AT), ticket)

cdef bint ledger_waits(LedgerRef *ledger, int acceptor) noexcept nogil:
    fence_full()
    return load_acquire(ledger_word(ledger, WAITING_AT + 64 * acceptor)) != 0

cdef void _note(LedgerRef *ledger, uint64_t ticket, int channel, bint opened) noexcept nogil:
    cdef uint64_t *end = ledger_word(ledger, CHANGES_END_AT)
    cdef uint64_t position = load_relaxed(end)
    store_release(
        &ledger.changes[position % CHANGE_PLACES], ticket << 17 | <uint64_t>channel << 1 | opened
    )
    store_release(end, position + 1)


cdef class Ledger:
    """The ledger of one processor.

    `hand`, `wait` and `ask_evictions` are for acceptors, `open`, `close`, `take` and `evicted` for the
    processor, `clear` for the supervisor after a fence; every process may read.
    """

    def __init__(self, unsigned char[::1] block, int places):
        if block.shape[0] < ledger_bytes(places) or <size_t>&block[0] % 64:
            raise ValueError(f"{block.shape[0]} bytes are no room for a ledger of {places} connections")
        self.keep = block
        self.ref.base = &block[0]
        self.ref.places = places
        self.ref.pending = <Row *>(self.ref.base + PENDING_AT)
        self.ref.rows = <Row *>(self.ref.base + ROWS_AT)
        self.ref.changes = <uint64_t *>(self.ref.base + ROWS_AT + places * ROW_BYTES)

    @property
    def places(self) -> int:
        return self.ref.places

    cdef uint64_t *_word(self, int at) noexcept:
        return ledger_word(&self.ref, at)

    @property
    def handed(self) -> int:
        return load_acquire(self._word(HANDED_AT))

    @property
    def taken(self) -> int:
        return load_acquire(self._word(TAKEN_AT))

    @property
    def cleared(self) -> int:
        """Return how often the supervisor has emptied the ledger.

        The number changes when a reader must count the rows again.
        """
        return load_acquire(self._word(CLEARED_AT))

    def outstanding(self) -> int:
        """Return the number of connections that were sent to the processor and not taken yet.

        The number is one too high if an acceptor was killed before it sent the connection.
        """
        return ledger_outstanding(&self.ref)

    # ---- acceptors

    def hand(self, int listener, const unsigned char[::1] address) -> int:
        """Record a connection; return its ticket. The caller then sends the socket or calls `take_back`."""
        cdef int length = _length(address)
        return ledger_hand(&self.ref, listener, &address[0] if length else NULL, length)

    def take_back(self, uint64_t ticket) -> None:
        """Undo the last `hand`, which has returned this ticket, because the connection was not sent."""
        assert load_relaxed(self._word(HANDED_AT)) == ticket
        ledger_take_back(&self.ref)

    def mark(self) -> int:
        """Return a ticket for a message to the processor that is not a connection.

        When the processor has taken this ticket, it has also taken every message sent before.
        """
        cdef uint64_t ticket = load_relaxed(self._word(HANDED_AT)) + 1
        store_release(&self.ref.pending[ticket % PENDING_PLACES].ticket, 0)
        store_release(self._word(HANDED_AT), ticket)
        return ticket

    def wait(self, int acceptor, bint waits) -> None:
        """Set whether the processor should ring acceptor number `acceptor` after a change.

        An acceptor that passes True must check once more for that change before it sleeps.
        """
        store_release(self._word(WAITING_AT + 64 * acceptor), waits)
        fence_full()

    def ask_evictions(self, uint64_t count) -> None:
        store_release(self._word(EVICTIONS_ASKED_AT), load_relaxed(self._word(EVICTIONS_ASKED_AT)) + count)

    # ---- the processor

    def open(self, int channel, uint64_t ticket, int listener, const unsigned char[::1] address) -> None:
        cdef int length = _length(address)
        self._check(channel)
        ledger_open(&self.ref, channel, ticket, listener, &address[0] if length else NULL, length)

    def close(self, int channel) -> None:
        self._check(channel)
        ledger_close(&self.ref, channel)

    def _check(self, int channel) -> None:
        if not 0 <= channel < self.ref.places:
            raise IndexError(f"channel {channel} of {self.ref.places}")

    def refuse(self, uint64_t ticket) -> None:
        """Record that the processor has taken a connection and does not serve it."""
        _note(&self.ref, ticket, 0, False)

    def take(self, uint64_t ticket) -> None:
        """Record the last ticket that the processor has taken. Call it after `open` or `refuse`."""
        ledger_take(&self.ref, ticket)

    def waits(self, int acceptor) -> bool:
        """Return whether to ring the acceptor. Call it after a change for which the acceptor may wait."""
        return ledger_waits(&self.ref, acceptor)

    def evictions_owed(self) -> int:
        return load_acquire(self._word(EVICTIONS_ASKED_AT)) - load_acquire(self._word(EVICTIONS_DONE_AT))

    def evicted(self, uint64_t count) -> None:
        """Record that `count` requested evictions are done, also those that found no connection to close."""
        store_release(self._word(EVICTIONS_DONE_AT), load_relaxed(self._word(EVICTIONS_DONE_AT)) + count)

    # ---- readers

    def snapshot(self) -> tuple[int, int, dict[int, tuple[int, bytes]]]:
        """Return (position, last ticket taken, {ticket: (listener number, address)}) of all connections.

        Pass `position` to `news` to get the changes after this call.
        """
        cdef uint64_t position = load_acquire(self._word(CHANGES_END_AT))
        cdef uint64_t taken = load_acquire(self._word(TAKEN_AT))
        cdef int i
        found = {}
        for i in range(<int>load_acquire(self._word(ROWS_USED_AT))):
            if self.ref.rows[i].ticket:
                row = _read(&self.ref.rows[i])
                if row is not None:
                    found[row[0]] = (row[1], row[2])
        for i in range(<int>PENDING_PLACES):
            row = _read(&self.ref.pending[i])
            if row is not None and row[0] > taken:
                found[row[0]] = (row[1], row[2])
        return position, taken, found

    def news(self, uint64_t position) -> tuple[int, list[tuple[int, tuple[int, bytes] | None]]] | None:
        """Return (new position, changes since `position`); None if some of the changes were overwritten.

        After None, take a new `snapshot`. A change is (ticket, (listener number, address)) if a connection
        was opened, and (ticket, None) if a connection was closed.
        """
        cdef uint64_t end = load_acquire(self._word(CHANGES_END_AT)), i, entry, ticket
        if end == position:
            return position, ()
        if end - position > CHANGE_PLACES:
            return None
        found = []
        for i in range(position, end):
            entry = load_acquire(&self.ref.changes[i % CHANGE_PLACES])
            ticket = entry >> 17
            if not entry & 1:
                found.append((ticket, None))
                continue
            row = _read(&self.ref.rows[entry >> 1 & 0xFFFF])
            if row is not None and row[0] == ticket:
                found.append((ticket, (row[1], row[2])))
        fence_acquire()
        if load_relaxed(self._word(CHANGES_END_AT)) - position >= CHANGE_PLACES:
            return None
        return end, found

    # ---- the supervisor

    def clear(self) -> None:
        """Empty the rows, because the processor has died. Call it when all processes know that (a fence).

        Connections that the processor had not taken remain in `pending` for its successor.
        """
        memset(self.ref.rows, 0, load_acquire(self._word(ROWS_USED_AT)) * ROW_BYTES)
        store_release(self._word(EVICTIONS_DONE_AT), load_acquire(self._word(EVICTIONS_ASKED_AT)))
        store_release(self._word(CLEARED_AT), load_relaxed(self._word(CLEARED_AT)) + 1)

    def abandon(self) -> None:
        """Drop the connections in `pending` too, because no successor follows. Call it after `clear`."""
        store_release(self._word(TAKEN_AT), load_acquire(self._word(HANDED_AT)))
        store_release(self._word(CLEARED_AT), load_relaxed(self._word(CLEARED_AT)) + 1)
