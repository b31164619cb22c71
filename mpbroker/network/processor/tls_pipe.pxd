# What the turn sees of a pipe; what it is for stands in tls_pipe.pyx.

from libc.stdint cimport int64_t, uint8_t

from mpbroker.security.openssl cimport SSL, ServerContext

cdef struct Bytes:
    uint8_t *base       # to free; NULL: none
    size_t at
    size_t end

cdef struct Wire:
    int fd
    int error           # errno of a failed system call
    int64_t wasted      # received by this call, less what the caller got
    int records         # begun in this call, less those that brought data
    bint begun          # the client has said something
    bint ended          # the client will send no more
    bint more           # the socket was not asked again, although it may have more
    Bytes left          # encrypted, not yet written
    Bytes early         # received, not yet decrypted

cdef class TlsPipe:
    cdef SSL *tls              # NULL until the client has said something
    cdef ServerContext context  # new connections may have another one by then
    cdef Wire wire
    cdef object failed          # what `recv_into` raises from now on
    cdef size_t moving         # bytes of an answer that are encrypted and not yet known to be written

    cdef _open(self)
    cdef size_t waiting(self) noexcept
    cdef bint write_left(self) except -1
    cdef bint write_encrypted(self, const uint8_t *data, size_t n) except -1
    cdef void _begin(self) noexcept
    cdef _end(self)
    cdef size_t _written(self, const uint8_t *data, size_t n) except? 0
    cdef object _error(self, int done)
