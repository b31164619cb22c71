"""Request headers, and the names of a client's software in an ApiVersions request."""
from libc.stdint cimport int16_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.network.processor.channel cimport Request

cdef struct Software:
    uint64_t name
    uint64_t name_bytes
    uint64_t version
    uint64_t version_bytes
    uint64_t end                    # position of the tagged fields after them

cdef bint parse_header(const int16_t *first_flexible, const uint8_t *frame, Request *r) noexcept nogil
cdef bint read_uvarint(const uint8_t *bytes, uint64_t *at, uint64_t end, uint64_t *value) noexcept nogil
cdef bint read_software(const uint8_t *base, const Request *r, Software *found) noexcept nogil

cdef inline uint32_t be32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]

cdef inline uint16_t be16(const uint8_t *p) noexcept nogil:
    return (<uint16_t>p[0] << 8) | p[1]
