"""Native reading of requests and writing of responses: a bounded cursor and both forms of lengths (KIP-482).

A cursor that has run over its end stays NULL, so one check after all reads is enough.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.records.wire cimport load_u16, load_u32, load_u64, store_u32

cdef enum:
    NULL_LENGTH = -1            # the length of null
    CLIENT_ID_AT = 12           # position in a frame: i16 length, then the text


cdef struct Cursor:
    const uint8_t *at           # NULL: the bytes are no request of that version
    const uint8_t *end


cdef inline const uint8_t *take(Cursor *c, uint64_t count) noexcept nogil:
    """Return the next `count` bytes. If there are fewer, return NULL, and the cursor stays NULL."""
    cdef const uint8_t *start = c.at
    if start == NULL or count > <uint64_t>(c.end - start):
        c.at = NULL
        return NULL
    c.at = start + count
    return start


cdef inline uint32_t take_u32(Cursor *c) noexcept nogil:
    cdef const uint8_t *p = take(c, 4)
    return load_u32(p) if p != NULL else 0


cdef inline uint16_t take_u16(Cursor *c) noexcept nogil:
    cdef const uint8_t *p = take(c, 2)
    return load_u16(p) if p != NULL else 0


cdef inline uint64_t take_u64(Cursor *c) noexcept nogil:
    cdef const uint8_t *p = take(c, 8)
    return load_u64(p) if p != NULL else 0


cdef inline uint32_t take_uvarint(Cursor *c) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef const uint8_t *p
    while shift < 35:
        p = take(c, 1)
        if p == NULL:
            return 0
        value |= <uint64_t>(p[0] & 0x7F) << shift
        if p[0] < 0x80:
            if value >> 32:
                break
            return <uint32_t>value
        shift += 7
    c.at = NULL
    return 0


cdef inline int64_t take_length(Cursor *c, bint flexible, bint wide) noexcept nogil:
    """Read and return a length or count, NULL_LENGTH for null.

    On the wire it is an unsigned varint of the value + 1 if `flexible`, else an i32 if `wide`, else an i16.
    """
    if flexible:
        return <int64_t>take_uvarint(c) - 1
    if wide:
        return <int32_t>take_u32(c)
    return <int16_t>take_u16(c)


cdef inline void skip_tags(Cursor *c) noexcept nogil:
    cdef uint32_t count = take_uvarint(c), _
    for _ in range(count):
        take_uvarint(c)
        take(c, take_uvarint(c))
        if c.at == NULL:
            return


cdef inline int uvarint_bytes(uint32_t value) noexcept nogil:
    cdef int n = 1
    while value > 0x7F:
        value >>= 7
        n += 1
    return n


cdef inline uint8_t *put_uvarint(uint8_t *p, uint32_t value) noexcept nogil:
    while value > 0x7F:
        p[0] = <uint8_t>(value | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1


cdef inline uint8_t *put_count(uint8_t *p, uint32_t count, bint flexible) noexcept nogil:
    if flexible:
        return put_uvarint(p, count + 1)
    store_u32(p, count)
    return p + 4


cdef inline int count_bytes(uint32_t count, bint flexible) noexcept nogil:
    return uvarint_bytes(count + 1) if flexible else 4
