# The fields of a TLS pipe, for the turn; tls_pipe.pyx has the methods.

from libc.stdint cimport int64_t, uint8_t

from mpbroker.security.openssl cimport SSL, ServerContext

cdef struct Bytes:
    uint8_t *base       # to be freed; NULL: none
    size_t at
    size_t end

cdef struct Wire:
    int fd
    int error           # errno of a failed system call
    int64_t wasted      # bytes received in this call, less those that the caller got
    int records         # records begun in this call, less those that brought data
    bint begun          # the client has sent something
    bint ended          # the client will send no more
    bint more           # the socket may have more, but was not read again
    Bytes left          # encrypted, not yet written
    Bytes early         # received, not yet decrypted

cdef class TlsPipe:
    cdef SSL *tls              # NULL until the client has sent something
    cdef ServerContext context  # new connections may have another one since
    cdef Wire wire
    cdef object failed          # the exception that `recv_into` raises from now on
    cdef size_t in_flight       # bytes of an answer that are encrypted, but not known to be written

    cdef _open(self)
    cdef size_t waiting(self) noexcept
    cdef bint write_left(self) except -1
    cdef bint write_encrypted(self, const uint8_t *data, size_t n) except -1
    cdef void _begin(self) noexcept
    cdef _end(self)
    cdef size_t _written(self, const uint8_t *data, size_t n) except? 0
    cdef object _error(self, int done)
