"""The ledger of a processor's connections, by which the connection limits count.

Only this file knows its offsets.

A ledger per processor; each word has one writer. An acceptor gives every connection a ticket, a number that
only grows per ledger, and notes it here before it sends the socket; the processor gives it a row when it
serves it. So at any instant a connection is in `pending` (ticket above `taken`), in the rows, or closed,
whichever process is killed in between.

header
    0     handed           last ticket that was noted; written by the acceptor, before it sends
    8     evictions_asked  how many connections the processor was asked to close; written by the acceptor
    64    taken            ticket of the last message that the processor took; written by it, after the row
    72    changes_end      how many changes were ever noted; written by the processor
    80    evictions_done   written by the processor
    88    rows_used        no channel from this number on was ever used; written by the processor
    128   waiting          per acceptor, on a cache line of its own: it wants to hear of room and closed
                           connections
    256   cleared          how often the rows were emptied; written by the supervisor
    1024  pending          handed over: row of ticket t at place t mod PENDING_PLACES; written by the
                           acceptor
4096      rows             by channel; ticket 0: no connection
...       changes          a connection was served or closed: ticket << 17 | channel << 1 | opened

The changes are a ring whose writer never waits: readers take those that they have not read yet. A reader that
was overtaken counts the rows again, as one that has just started does.
"""
from libc.stdint cimport uint8_t, uint16_t, uint64_t

cdef enum:
    ADDRESS_BYTES = 16
    ROW_BYTES = 32
    PENDING_PLACES = 64
    HANDED_AT = 0
    EVICTIONS_ASKED_AT = 8
    TAKEN_AT = 64
    CHANGES_END_AT = 72
    EVICTIONS_DONE_AT = 80
    ROWS_USED_AT = 88
    WAITING_AT = 128
    CLEARED_AT = 256
    PENDING_AT = 1024
    ROWS_AT = 4096
    CHANGE_PLACES = 65536

cdef struct Row:
    uint64_t ticket
    uint16_t listener
    uint8_t address_bytes       # 4: IPv4, 16: IPv6, 0: a client on this host, by a Unix-domain socket
    uint8_t reserved[5]
    uint8_t address[ADDRESS_BYTES]


cdef struct LedgerRef:
    uint8_t *base
    Row *rows
    Row *pending
    uint64_t *changes
    int places

cdef inline uint64_t *ledger_word(LedgerRef *ledger, int at) noexcept nogil:
    return <uint64_t *>(ledger.base + at)

# For acceptors.
cdef uint64_t ledger_outstanding(LedgerRef *ledger) noexcept nogil
cdef uint64_t ledger_hand(LedgerRef *ledger, int listener, const uint8_t *address, int length) noexcept nogil
cdef void ledger_take_back(LedgerRef *ledger) noexcept nogil
# For the processor.
cdef void ledger_open(
    LedgerRef *ledger, int channel, uint64_t ticket, int listener, const uint8_t *address, int length
) noexcept nogil
cdef void ledger_close(LedgerRef *ledger, int channel) noexcept nogil
cdef void ledger_take(LedgerRef *ledger, uint64_t ticket) noexcept nogil
cdef bint ledger_waits(LedgerRef *ledger, int acceptor) noexcept nogil


cdef class Ledger:
    cdef object keep
    cdef LedgerRef ref
    cdef uint64_t *_word(self, int at) noexcept
