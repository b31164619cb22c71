"""Sessions as a processor writes them and handlers read them; `session.pxd` has the layout of an entry."""
import os
from libc.errno cimport errno
from libc.string cimport memcpy, memset

from mpbroker.ipc.session cimport (
    CIPHER_BYTES, HOST_BYTES, MECHANISM_BYTES, PRINCIPAL_BYTES, SESSION_BYTES, SOFTWARE_BYTES,
    TLS_VERSION_BYTES, SecurityProtocol, SessionEntry, SessionFlag,
)
from shm.atomics cimport (
    fence_acquire, fence_release, load_acquire, load_relaxed, store_relaxed, store_release,
)

cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <net/if.h>
    #include <stdio.h>
    #include <sys/socket.h>

    /* Write an IPv6 address as Java's getHostAddress does, without a "::": access control lists that were
       written for Kafka name hosts so. */
    static int session_v6(const uint8_t *bytes, char *host, size_t room)
    {
        int at = 0, i;
        for (i = 0; i < 16; i += 2)
            at += snprintf(host + at, room - at, i ? ":%x" : "%x", bytes[i] << 8 | bytes[i + 1]);
        return 0;
    }

    /* The principal of a client that has not authenticated. */
    static const char ANONYMOUS_TEXT[] = "User:ANONYMOUS";

    /* Get host and port of one end of a socket; clients of Unix-domain sockets have neither.
       Return -1 if that fails: errno is the reason. */
    static int session_address(int fd, int peer, char *host, size_t room, uint16_t *port)
    {
        struct sockaddr_storage at;
        socklen_t length = sizeof at;
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&at;
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&at;
        if (peer ? getpeername(fd, (struct sockaddr *)&at, &length)
                 : getsockname(fd, (struct sockaddr *)&at, &length))
            return -1;
        *port = 0;
        if (at.ss_family == AF_INET) {
            *port = ntohs(v4->sin_port);
            return inet_ntop(AF_INET, &v4->sin_addr, host, room) ? 0 : -1;
        }
        if (at.ss_family == AF_INET6) {
            *port = ntohs(v6->sin6_port);
            /* An IPv4 client of a dual-stack listener is shown as in Java. */
            if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
                return inet_ntop(AF_INET, v6->sin6_addr.s6_addr + 12, host, room) ? 0 : -1;
            if (peer)
                return session_v6(v6->sin6_addr.s6_addr, host, room);
            return inet_ntop(AF_INET6, &v6->sin6_addr, host, room) ? 0 : -1;
        }
        snprintf(host, room, "unix");
        return 0;
    }
    """
    int session_address(int fd, int peer, char *host, size_t room, uint16_t *port) nogil
    const char ANONYMOUS_TEXT[15]

assert sizeof(SessionEntry) == SESSION_BYTES

BYTES_EACH = SESSION_BYTES
PRINCIPAL_BYTES_MAX = PRINCIPAL_BYTES - 1
ANONYMOUS = (<bytes>ANONYMOUS_TEXT).decode()  # type: str
# Connection and revision, by which readers detect an incomplete entry.
cdef enum:
    UNCHANGED_BYTES = 16
    # The part of a connection's running number that its text shows, as in Kafka.
    INDEX_MASK = 0x7FFFFFFF


class SessionGone(LookupError):
    """Raised if a channel no longer serves a connection; never while a request of the connection is held."""


class TooLong(ValueError):
    """A text is too long for a session. It is not truncated: a part of a principal may name another user."""


cdef void session_software(
    SessionEntry *entry, const uint8_t *name, uint64_t name_bytes,
    const uint8_t *version, uint64_t version_bytes
) noexcept nogil:
    """Record the client's software name and version. Long texts are truncated: only people read them."""
    if name_bytes >= SOFTWARE_BYTES:
        name_bytes = SOFTWARE_BYTES - 1
    if version_bytes >= SOFTWARE_BYTES:
        version_bytes = SOFTWARE_BYTES - 1
    memset(entry.software_name, 0, 2 * SOFTWARE_BYTES)
    memcpy(entry.software_name, name, name_bytes)
    memcpy(entry.software_version, version, version_bytes)
    # Whoever sees the new revision sees the new texts.
    store_release(&entry.revision, entry.revision + 1)


cdef _put(char *to, size_t room, str what, str text):
    cdef bytes data = text.encode()
    if <size_t>len(data) >= room:
        raise TooLong(
            f"the {what} of a connection has {len(data)} bytes, at most {room - 1} are served: {text[:64]!r}…"
        )
    if b"\0" in data:
        raise ValueError(f"the {what} of a connection holds a zero byte: {text[:64]!r}")
    memset(to, 0, room)
    memcpy(to, <const char *>data, len(data))


cdef void begin_change(SessionEntry *entry) noexcept nogil:
    """Mark the entry as incomplete, until the caller stores `connection` again."""
    store_relaxed(&entry.connection, 0)
    store_relaxed(&entry.revision, entry.revision + 1)
    fence_release()


cdef bint session_open(
    SessionEntry *entry, uint64_t connection, int fd, int processor, int listener, int protocol,
    bint privileged
) noexcept nogil:
    """Write a new connection's entry. Return False, with errno set, if the client has disconnected."""
    begin_change(entry)
    memset(<char *>entry + UNCHANGED_BYTES, 0, sizeof(SessionEntry) - UNCHANGED_BYTES)
    if (
        session_address(fd, 1, entry.peer_host, HOST_BYTES, &entry.peer_port)
        or session_address(fd, 0, entry.local_host, HOST_BYTES, &entry.local_port)
    ):
        return False
    entry.listener, entry.protocol, entry.processor = listener, protocol, processor
    entry.index = <uint32_t>(connection & INDEX_MASK)
    entry.flags = SessionFlag.PRIVILEGED if privileged else 0
    memcpy(entry.principal, ANONYMOUS_TEXT, sizeof(ANONYMOUS_TEXT))
    session_software(entry, <const uint8_t *>b"unknown", 7, <const uint8_t *>b"unknown", 7)
    store_release(&entry.connection, connection)
    return True


cdef class Session:
    """A copy of a connection's session. Texts are decoded on access."""

    @property
    def connection(self) -> int:
        """Return the connection's id, a number of 64 bits that is never reused."""
        return self.entry.connection

    @property
    def revision(self) -> int:
        """Return the revision, which grows with each change of this connection's session."""
        return self.entry.revision

    @property
    def connection_id(self) -> str:
        """Return the id in Kafka's form: localHost:localPort-remoteHost:remotePort-processorId-index."""
        return (
            f"{self.local_host}:{self.entry.local_port}-{self.client_host}:{self.entry.peer_port}"
            f"-{self.entry.processor}-{self.entry.index}"
        )

    @property
    def listener(self) -> int:
        """Return the number of the connection's listener (ipc/listeners.py)."""
        return self.entry.listener

    @property
    def security_protocol(self) -> SecurityProtocol:
        return SecurityProtocol(self.entry.protocol)

    @property
    def privileged(self) -> bool:
        """Return whether the connection's listener is one that only brokers and operators can reach."""
        return bool(self.entry.flags & SessionFlag.PRIVILEGED)

    @property
    def token_authenticated(self) -> bool:
        """Return whether the client has logged in with a delegation token (Kafka: KafkaPrincipal)."""
        return bool(self.entry.flags & SessionFlag.TOKEN_AUTHENTICATED)

    @property
    def processor(self) -> int:
        """Return the number of the processor that serves the connection."""
        return self.entry.processor

    @property
    def client_host(self) -> str:
        return self.entry.peer_host.decode()

    @property
    def client_port(self) -> int:
        return self.entry.peer_port

    @property
    def local_host(self) -> str:
        return self.entry.local_host.decode()

    @property
    def local_port(self) -> int:
        return self.entry.local_port

    @property
    def principal(self) -> str:
        """Return the client's principal as type:name, as in ACLs."""
        return self.entry.principal.decode()

    @property
    def principal_type(self) -> str:
        return self.principal.partition(":")[0]

    @property
    def principal_name(self) -> str:
        return self.principal.partition(":")[2]

    @property
    def client_software_name(self) -> str:
        return self.entry.software_name.decode()

    @property
    def client_software_version(self) -> str:
        return self.entry.software_version.decode()

    @property
    def mechanism(self) -> str:
        """Return the SASL mechanism, "" if SASL is not used."""
        return self.entry.mechanism.decode()

    @property
    def cipher(self) -> str:
        """Return the cipher suite of TLS, "" if TLS is not used."""
        return self.entry.cipher.decode()

    @property
    def tls_version(self) -> str:
        return self.entry.tls_version.decode()

    @property
    def expires_ns(self) -> int:
        """Return when the client must authenticate again, in ns of CLOCK_MONOTONIC; 0: never."""
        return self.entry.expires_ns

    def __repr__(self):
        return f"<Session {self.connection_id} {self.principal}>"


cdef class Sessions:
    """The sessions of one processor. The processor calls `open` and `set`; holders of requests call `of`."""

    def __init__(self, unsigned char[::1] block):
        if block.shape[0] < SESSION_BYTES or <size_t>&block[0] % 64:
            raise ValueError(f"{block.shape[0]} bytes are no room for sessions")
        self.keep = block
        self.entries = <SessionEntry *>&block[0]
        self.places = block.shape[0] // SESSION_BYTES

    cdef SessionEntry *_entry(self, uint32_t channel) except NULL:
        if channel >= self.places:
            raise SessionGone(f"channel {channel} of {self.places}")
        return &self.entries[channel]

    cdef SessionEntry *_entry_of(self, uint32_t channel, uint64_t connection) except NULL:
        cdef SessionEntry *entry = self._entry(channel)
        cdef uint64_t there = load_acquire(&entry.connection)
        if there != connection or not there:
            raise SessionGone(f"channel {channel} serves connection {there:#x}, not {connection:#x}")
        return entry

    def of(self, uint32_t channel, uint64_t connection) -> Session:
        """Return a copy of the session of a connection whose request the caller holds. Raises SessionGone."""
        cdef SessionEntry *entry = self._entry(channel)
        # Read the revision before the connection and apart from the copy, which may read its end before its
        # beginning.
        cdef uint64_t revision = load_acquire(&entry.revision)
        cdef Session session = Session.__new__(Session)
        self._entry_of(channel, connection)
        memcpy(&session.entry, entry, sizeof(SessionEntry))
        # A caller that holds no request must not get a mixture.
        fence_acquire()
        self._entry_of(channel, connection)
        if load_relaxed(&entry.revision) != revision:
            raise SessionGone(f"channel {channel} of connection {connection:#x} is just being changed")
        return session

    def open(
        self, uint32_t channel, uint64_t connection, int fd, int processor, int listener, int protocol,
        bint privileged,
    ) -> None:
        """Write the session of a new connection, which is not authenticated yet.

        Raises OSError if the client has disconnected already.
        """
        cdef SessionEntry *entry = self._entry(channel)
        if not session_open(entry, connection, fd, processor, listener, protocol, privileged):
            raise OSError(errno, f"getpeername or getsockname: {os.strerror(errno)}")

    def set(
        self, uint32_t channel, uint64_t connection, *, str principal=None, str mechanism=None,
        str cipher=None, str tls_version=None, expires_ns: int | None = None,
        token_authenticated: bool | None = None,
    ) -> None:
        """Change the given facts of a connection's session. None leaves a fact unchanged.

        Raises TooLong, ValueError or SessionGone without having changed anything.
        """
        cdef SessionEntry *entry = self._entry_of(channel, connection)
        cdef SessionEntry changed
        memcpy(&changed, entry, sizeof(SessionEntry))
        if principal is not None:
            if not all(principal.partition(":")):
                raise ValueError(f"a principal is type:name, not {principal[:64]!r}")
            _put(changed.principal, PRINCIPAL_BYTES, "principal", principal)
        if mechanism is not None:
            _put(changed.mechanism, MECHANISM_BYTES, "SASL mechanism", mechanism)
        if cipher is not None:
            _put(changed.cipher, CIPHER_BYTES, "cipher", cipher)
        if tls_version is not None:
            _put(changed.tls_version, TLS_VERSION_BYTES, "TLS version", tls_version)
        if expires_ns is not None:
            changed.expires_ns = expires_ns
        if token_authenticated is not None:
            changed.flags &= ~<uint32_t>SessionFlag.TOKEN_AUTHENTICATED
            if token_authenticated:
                changed.flags |= SessionFlag.TOKEN_AUTHENTICATED
        begin_change(entry)
        memcpy(
            <char *>entry + UNCHANGED_BYTES,
            <char *>&changed + UNCHANGED_BYTES,
            sizeof(SessionEntry) - UNCHANGED_BYTES,
        )
        store_release(&entry.connection, connection)
