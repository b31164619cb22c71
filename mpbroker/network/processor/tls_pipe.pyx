# distutils: libraries = ssl crypto
"""TLS on a non-blocking socket, with OpenSSL between two buffers of the process (Kafka: SslTransportLayer).

OpenSSL on the socket itself would take two system calls to read a record of 16 KiB and one to write it. Here
one call reads up to 64 KiB, and one writes all records that the caller has encrypted. Decrypted bytes go
straight into the caller's memory. A connection has memory of its own only for encrypted bytes that the socket
has not taken or that were received before they could be decrypted: one chunk at most, none while it is idle.

All pipes of the process share the two buffers. Each method holds the GIL all the time and empties the buffers
before it returns, and only one thread of the process serves connections.
"""

import os
import ssl

from libc.errno cimport EAGAIN, EINTR, ENOMEM, errno as c_errno
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from mpbroker.security.openssl cimport *

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_recv "recv"(int fd, void *into, size_t n, int flags)
    ssize_t c_send "send"(int fd, const void *data, size_t n, int flags)
    enum:
        MSG_NOSIGNAL
        MSG_PEEK

cdef enum:
    CIPHERTEXT_BYTES = 64 << 10
    # A caller's chunk when encrypted, and some more. Anything beyond is kept like unwritten bytes.
    STAGED_BYTES = 160 << 10
    # Bytes received in one call beyond those its caller gets: each byte may come in a record of its own.
    WASTED_BYTES = 256 << 10
    # Records of one call that may bring the caller nothing. A change of keys is such a record: it costs us
    # some 20 us, and costs nothing to a client that has prepared it.
    IDLE_RECORDS = 32
    # The bytes of a record that OpenSSL reads first.
    RECORD_HEADER_BYTES = 5

WASTED_BYTES_MAX = WASTED_BYTES
IDLE_RECORDS_MAX = IDLE_RECORDS
CIPHERTEXT_BYTES_MAX = CIPHERTEXT_BYTES
# Bound of TLS's own answers, to changes of keys for example, to a client that does not read them.
UNREAD_BYTES_MAX = 64 << 10


_ENDS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class MoreLater(Exception):
    """Raised if a call has used up its share: the socket may have more bytes, which epoll does not report."""


cdef uint8_t received[CIPHERTEXT_BYTES]
cdef size_t received_at = 0, received_end = 0
cdef uint8_t staged[STAGED_BYTES]
cdef size_t staged_end = 0

cdef inline size_t remaining(Bytes *some) noexcept nogil:
    return some.end - some.at

cdef void forget(Bytes *some) noexcept nogil:
    free(some.base)
    some.base = NULL
    some.at = some.end = 0

cdef bint append(Bytes *to, const uint8_t *data, size_t n) noexcept nogil:
    """Append `n` bytes of `data`. Return False if memory is exhausted."""
    cdef uint8_t *base
    if to.at:
        # Reuse the place of consumed bytes: a reader that never takes all would make the buffer grow forever.
        memmove(to.base, to.base + to.at, remaining(to))
        to.end -= to.at
        to.at = 0
    base = <uint8_t *>realloc(to.base, to.end + n)
    if base == NULL:
        return False
    memcpy(base + to.end, data, n)
    to.base = base
    to.end += n
    return True

# ---- OpenSSL's side

cdef int take_encrypted(BIO *bio, const char *data, int n) noexcept nogil:
    """Buffer encrypted bytes from OpenSSL (BIO write). Return `n`, or -1 if memory is exhausted."""
    global staged_end
    cdef Wire *wire = <Wire *>BIO_get_data(bio)
    BIO_clear_retry_flags(bio)
    if remaining(&wire.left) == 0 and staged_end + n <= <size_t>STAGED_BYTES:
        memcpy(staged + staged_end, data, n)
        staged_end += n
        return n
    if not (keep_staged(wire) and append(&wire.left, <const uint8_t *>data, n)):
        wire.error = ENOMEM
        return -1
    return n

cdef bint keep_staged(Wire *wire) noexcept nogil:
    """Move the shared buffer's bytes to the connection's own memory. Return False if memory is exhausted."""
    global staged_end
    cdef size_t n = staged_end
    staged_end = 0
    return n == 0 or append(&wire.left, staged, n)

cdef int give_received(BIO *bio, char *into, int room) noexcept nogil:
    """Give OpenSSL encrypted bytes of the client (BIO read). Return their number; 0: end; -1: none now."""
    global received_at
    cdef Wire *wire = <Wire *>BIO_get_data(bio)
    cdef size_t n = room
    BIO_clear_retry_flags(bio)
    if room == RECORD_HEADER_BYTES:
        if wire.records == IDLE_RECORDS:
            wire.more = True
            BIO_set_retry_read(bio)
            return -1
        wire.records += 1
    if remaining(&wire.early):
        if n > remaining(&wire.early):
            n = remaining(&wire.early)
        memcpy(into, wire.early.base + wire.early.at, n)
        wire.early.at += n
        if not remaining(&wire.early):
            forget(&wire.early)
        return <int>n
    if received_at == received_end and not fill(wire):
        if not (wire.ended or wire.error):
            BIO_set_retry_read(bio)
        return 0 if wire.ended else -1
    if n > received_end - received_at:
        n = received_end - received_at
    memcpy(into, received + received_at, n)
    received_at += n
    return <int>n

cdef bint has_spoken(Wire *wire) noexcept nogil:
    """Return whether the client has sent bytes or disconnected. Until then OpenSSL takes no memory."""
    cdef uint8_t first
    wire.begun = c_recv(wire.fd, &first, 1, MSG_PEEK) >= 0 or c_errno != EAGAIN
    return wire.begun

cdef bint fill(Wire *wire) noexcept nogil:
    """Receive from the socket. Return False if no bytes came, or if this call has used up its share."""
    global received_at, received_end
    cdef ssize_t n
    if wire.ended:
        return False
    if wire.wasted >= WASTED_BYTES:
        wire.more = True
        return False
    while True:
        n = c_recv(wire.fd, received, CIPHERTEXT_BYTES, 0)
        if n >= 0 or c_errno != EINTR:
            break
    if n > 0:
        received_at, received_end = 0, n
        wire.wasted += n
        return True
    if n == 0:
        wire.ended = True
    elif c_errno != EAGAIN:
        wire.error = c_errno
    return False

cdef long control(BIO *bio, int order, long number, void *pointer) noexcept nogil:
    if order == BIO_CTRL_EOF:
        return (<Wire *>BIO_get_data(bio)).ended
    return order == BIO_CTRL_FLUSH

cdef BIO_METHOD *new_method() except NULL:
    cdef BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, b"pipe")
    if method == NULL:
        raise MemoryError
    BIO_meth_set_write(method, take_encrypted)
    BIO_meth_set_read(method, give_received)
    BIO_meth_set_ctrl(method, control)
    return method

cdef BIO_METHOD *METHOD = new_method()

# ---- the caller's side

cdef class TlsPipe:
    """The server's side of a TLS connection. The caller closes the descriptor.

    `recv`, `recv_into` and `send` behave like the methods of a non-blocking socket.
    """

    def __init__(self, int fd, ServerContext context not None):
        self.wire.fd = fd
        self.context = context

    def __dealloc__(self):
        SSL_free(self.tls)
        forget(&self.wire.left)
        forget(&self.wire.early)

    def handshake(self) -> bool:
        """Continue the handshake. Return whether it is done and its last bytes are written.

        Raise ssl.SSLError if the handshake fails, after sending the alert if possible; ssl.SSLEOFError if the
        client has closed; MoreLater if more bytes are to be read, but other channels go first.
        """
        cdef int done
        if not self.wire.begun and not has_spoken(&self.wire):
            return False
        if self.tls == NULL:
            self._open()
        self._begin()
        done = SSL_do_handshake(self.tls)
        if done == 1:
            self._end()
            return self.flush()
        error = self._error(done)
        self._end()
        if error is None:
            if self.flush() and self.wire.more:
                raise MoreLater
            return False
        try:
            self.flush()
        except OSError:
            pass    # the client does not learn why; the caller does
        raise error

    def flush(self) -> bool:
        """Write the encrypted bytes that wait for the socket. Return whether all are written."""
        return self.write_left()

    def encrypt(self, const unsigned char[::1] data) -> bool:
        """Encrypt all of `data` and write as much as the socket takes. Return whether all is written."""
        return self.write_encrypted(&data[0], data.shape[0]) if data.shape[0] else self.write_left()

    cdef _open(self):
        """Create OpenSSL's state of the connection: 8 KiB with OpenSSL 3.0, 16 KiB with 3.5."""
        cdef BIO *bio = BIO_new(METHOD)
        if bio == NULL:
            raise MemoryError
        self.tls = SSL_new(self.context.context)
        if self.tls == NULL:
            BIO_free(bio)
            raise MemoryError
        BIO_set_data(bio, &self.wire)
        BIO_set_init(bio, 1)
        SSL_set_bio(self.tls, bio, bio)
        SSL_set_accept_state(self.tls)

    cdef size_t waiting(self) noexcept:
        """Return the number of bytes that are encrypted and not yet written."""
        return remaining(&self.wire.left)

    cdef bint write_left(self) except -1:
        cdef Bytes *left = &self.wire.left
        while remaining(left):
            left.at += self._written(left.base + left.at, remaining(left))
            if remaining(left):
                return False
        forget(left)
        return True

    cdef bint write_encrypted(self, const uint8_t *data, size_t n) except -1:
        global staged_end
        cdef size_t taken = 0, at
        if self.tls == NULL:
            raise ssl.SSLError(1, "before the handshake")
        self._begin()
        done = SSL_write_ex(self.tls, data, n, &taken)
        if done != 1:
            error = self._error(done)
            self._end()
            raise error or ssl.SSLError(1, "OpenSSL would wait for a write")
        if remaining(&self.wire.left):
            return self.write_left()
        n, staged_end = staged_end, 0
        at = self._written(staged, n)
        if at < n and not append(&self.wire.left, staged + at, n - at):
            raise MemoryError
        return at == n

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt all of `data` and return its length. `flush` returns True once all is written.

        Raise BlockingIOError, and take nothing, if earlier bytes are not written yet.
        """
        if not self.flush():
            raise BlockingIOError
        self.encrypt(data)
        return len(data)

    def recv_into(self, unsigned char[::1] room) -> int:
        """Decrypt into `room`. Return the number of decrypted bytes, 0 at the end of the stream.

        If no byte can be decrypted, raise BlockingIOError for an empty socket, MoreLater if other channels go
        first. If other channels go first after some bytes, `had_share` is True.
        """
        cdef size_t got = 0, n = 0, most = room.shape[0]
        if self.failed is not None:
            raise self.failed
        if self.tls == NULL:
            raise ssl.SSLError(1, "before the handshake")
        if remaining(&self.wire.left) > <size_t>UNREAD_BYTES_MAX:
            raise ssl.SSLError(1, "the client reads nothing of what TLS answers it")
        self._begin()
        error = None
        while got < most:
            done = SSL_read_ex(self.tls, &room[got], most - got, &n)
            if done != 1:
                error = self._error(done)
                break
            got += n
            self.wire.wasted -= n
            # The header of its record may have been read by an earlier call.
            self.wire.records -= self.wire.records > 0
        self._end()
        if got and isinstance(error, ssl.SSLError) and not isinstance(error, _ENDS):
            # The bytes before the failure count. OpenSSL reports the reason only once.
            self.failed = error
        if got:
            return got
        if isinstance(error, _ENDS):
            return 0
        if error is not None:
            raise error
        if self.wire.more:
            raise MoreLater
        raise BlockingIOError

    def recv(self, size_t size) -> bytes:
        data = bytearray(size)
        return bytes(data[: self.recv_into(data)])

    def close(self) -> None:
        """Send TLS's closing alert (close_notify) if the socket takes it at once."""
        if self.tls == NULL:
            return
        self._begin()
        SSL_shutdown(self.tls)
        ERR_clear_error()
        try:
            self._end()
            self.flush()
        except (OSError, MemoryError):
            pass    # the client has disconnected, or memory is short for the alert

    @property
    def has_begun(self) -> bool:
        """Return whether the client has sent bytes or disconnected."""
        return self.wire.begun

    @property
    def had_share(self) -> bool:
        """Return whether the last call has left bytes unread because other channels go first."""
        return self.wire.more

    @property
    def carries_answer(self) -> bool:
        """Return whether encrypted bytes of a response may still have to be written to the socket."""
        return self.in_flight != 0

    @property
    def held_bytes(self) -> int:
        """Return the size in bytes of the memory for this connection's encrypted bytes."""
        return self.wire.left.end + self.wire.early.end

    @property
    def cipher(self) -> str:
        """Return OpenSSL's name of the cipher; "" before the handshake is done."""
        cdef const SSL_CIPHER *chosen = NULL
        if self.tls != NULL:
            chosen = SSL_get_current_cipher(self.tls)
        return SSL_CIPHER_get_name(chosen).decode() if chosen != NULL else ""

    @property
    def version(self) -> str:
        """Return OpenSSL's name of the TLS version; "" before the client has sent bytes."""
        return SSL_get_version(self.tls).decode() if self.tls != NULL else ""

    @property
    def peer_certificate(self) -> bytes | None:
        """Return the client's certificate in DER; None if the client has sent none."""
        cdef X509 *found = NULL
        if self.tls != NULL:
            found = SSL_get_peer_certificate(self.tls)
        cdef unsigned char *at
        cdef int size
        if found == NULL:
            return None
        try:
            size = i2d_X509(found, NULL)
            if size < 0:
                raise failure(ssl.SSLError, "no DER")
            data = bytearray(size)
            at = data
            i2d_X509(found, &at)
            return bytes(data)
        finally:
            X509_free(found)

    cdef void _begin(self) noexcept:
        ERR_clear_error()
        self.wire.wasted = self.wire.records = 0
        self.wire.more = False

    cdef _end(self):
        """Move bytes left in the shared buffers to the connection's own memory. Raise MemoryError."""
        global received_at, received_end
        cdef bint kept = keep_staged(&self.wire)
        if received_at < received_end:
            kept = append(&self.wire.early, received + received_at, received_end - received_at) and kept
        received_at = received_end = 0
        if not kept:
            raise MemoryError

    cdef size_t _written(self, const uint8_t *data, size_t n) except? 0:
        """Write to the socket. Return how many bytes the socket has taken. Raise OSError."""
        cdef ssize_t taken
        if n == 0:
            return 0
        while True:
            taken = c_send(self.wire.fd, data, n, MSG_NOSIGNAL)
            if taken >= 0:
                return taken
            if c_errno == EAGAIN:
                return 0
            if c_errno != EINTR:
                self.wire.error = c_errno
                raise os_error(c_errno)

    cdef object _error(self, int done):
        """Return the error that stopped OpenSSL; None if OpenSSL only waits for bytes of the client."""
        cdef int kind = SSL_get_error(self.tls, done)
        if kind == SSL_ERROR_WANT_READ:
            return None
        if self.wire.error:
            ERR_clear_error()
            return os_error(self.wire.error)
        if self.wire.ended:
            ERR_clear_error()
            return ssl.SSLEOFError(8, "the client has closed the connection")
        if kind == SSL_ERROR_ZERO_RETURN:
            return ssl.SSLZeroReturnError(6, "the client has ended TLS")
        return failure(ssl.SSLError, "OpenSSL failed")


cdef object os_error(int number):
    return OSError(number, os.strerror(number))
