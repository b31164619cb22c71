# What the turn sees of a pipe; what it is for stands in tls_pipe.pyx.

from libc.stdint cimport uint8_t

from mpbroker.security.openssl cimport SSL

cdef struct Bytes:
    uint8_t *base       # to free; NULL: none
    size_t at
    size_t end

cdef struct Wire:
    int fd
    int error           # errno of a failed system call
    int fills
    bint ended          # the client will send no more
    bint more           # the socket was not asked again, although it may have more
    Bytes left          # encrypted, not yet written
    Bytes early         # received, not yet decrypted

cdef class TlsPipe:
    cdef SSL *tls
    cdef Wire wire
    cdef size_t moving         # bytes of an answer that are encrypted and not yet known to be written

    cdef bint write_left(self) except -1
    cdef bint write_encrypted(self, const uint8_t *data, size_t n) except -1
    cdef void _begin(self) noexcept
    cdef _end(self)
    cdef size_t _written(self, const uint8_t *data, size_t n) except? 0
    cdef object _error(self, int done)
