"""The session of each connection: the facts about its client, in one entry per channel of a processor.

A processor has an array of entries, indexed by channel number, which it alone writes. An entry is complete
before the first request of its connection goes to a handler. It is changed only while no other process holds
a request of the connection, and the channel is not given to another connection meanwhile. So a handler reads
the entry of a request that it holds without waiting, but it still compares the connection id. (Kafka copies
KafkaChannel's metadata into each RequestContext.) The offsets in an entry are defined in this file only.

    0     connection       never reused; 0 while the entry is being made: stored last
    8     revision         grows with each change and each new connection: a value derived from an entry is
                           valid while the revision is the same
    16    expires_ns       CLOCK_MONOTONIC; from then on the client must authenticate again. 0: never
    24    flags            SessionFlag
    28    listener         number in the configuration's order
    30    protocol         SecurityProtocol
    32    index            running number of the connection in its processor: the end of `connection_id`
    36    processor        number of the processor
    38    peer_port, local_port
    64    texts            UTF-8, zero-terminated, each in a field of fixed size

An entry that was never used costs no memory: the array is sparse.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cpdef enum SecurityProtocol:
    """Security protocols, with Kafka's numbers."""
    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

cpdef enum SessionFlag:
    PRIVILEGED = 1          # came by the control plane's listener, else by the brokers' own
    TOKEN_AUTHENTICATED = 2     # logged in by a delegation token

cdef enum:
    SESSION_BYTES = 1024
    HOST_BYTES = 64
    SOFTWARE_BYTES = 64
    MECHANISM_BYTES = 32
    CIPHER_BYTES = 64
    TLS_VERSION_BYTES = 16
    PRINCIPAL_BYTES = 592

cdef struct SessionEntry:
    uint64_t connection
    uint64_t revision
    uint64_t expires_ns
    uint32_t flags
    uint16_t listener
    uint16_t protocol
    uint32_t index
    uint16_t processor
    uint16_t peer_port
    uint16_t local_port
    uint8_t reserved[22]
    char peer_host[HOST_BYTES]
    char local_host[HOST_BYTES]
    char software_name[SOFTWARE_BYTES]      # "unknown" until ApiVersions names it
    char software_version[SOFTWARE_BYTES]
    char mechanism[MECHANISM_BYTES]         # of SASL; "" without
    char cipher[CIPHER_BYTES]               # of TLS; "" without
    char tls_version[TLS_VERSION_BYTES]
    char principal[PRINCIPAL_BYTES]         # type:name

cdef void session_software(
    SessionEntry *entry, const uint8_t *name, uint64_t name_bytes,
    const uint8_t *version, uint64_t version_bytes
) noexcept nogil

cdef bint session_open(
    SessionEntry *entry, uint64_t connection, int fd, int processor, int listener, int protocol,
    bint privileged
) noexcept nogil


cdef class Session:
    cdef SessionEntry entry

cdef class Sessions:
    cdef object keep
    cdef SessionEntry *entries
    cdef readonly uint32_t places
    cdef SessionEntry *_entry(self, uint32_t channel) except NULL
    cdef SessionEntry *_entry_of(self, uint32_t channel, uint64_t connection) except NULL
