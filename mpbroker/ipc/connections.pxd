"""The ledger of a processor's connections, which acceptors read to enforce connection limits.

The offsets in a ledger are defined in this file only.

Each processor has a ledger; each word in it has one writer. An acceptor gives every connection a ticket, the
next number of the ledger, and writes it into `pending` before it sends the socket to the processor. The
processor gives the connection a row when it begins to serve it. So at any instant a connection is in
`pending` (ticket above `taken`), in a row, or closed, whichever process is killed in between.

header
    0     handed           last ticket in `pending`; written by the acceptor, before it sends the socket
    8     evictions_asked  how many connections the processor was asked to close; written by the acceptor
    64    taken            ticket of the last message that the processor took; written by it, after the row
    72    changes_end      number of changes ever written; written by the processor
    80    evictions_done   how many of the evictions asked for are done; written by the processor
    88    rows_used        no channel from this number on was ever used; written by the processor
    128   waiting          per acceptor, on a cache line of its own: whether to ring it when there is room or
                           a connection was closed
    256   cleared          how often the rows were emptied; written by the supervisor
    1024  pending          connections under way: that of ticket t at place t mod PENDING_PLACES; written by
                           the acceptor
4096      rows             connections served, by channel; ticket 0: no connection
...       changes          a connection was opened or closed: ticket << 17 | channel << 1 | opened

The changes are a ring whose writer never waits. A reader takes the changes that it has not read yet. If the
writer has overwritten some of these, the reader counts the rows again, as after its start.
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
