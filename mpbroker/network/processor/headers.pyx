from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t, uint64_t

from mpbroker.network.processor.apis cimport API_KEYS
from mpbroker.network.processor.channel cimport Request


cdef bint parse_header(const int16_t *first_flexible, const uint8_t *frame, Request *r) noexcept nogil:
    """Parse a request header v1 or v2 (RequestHeader.json) and set api_key, api_version, correlation and body
    of the request. Return False if the header is malformed.
    """
    cdef uint64_t at = 12, end = r.needed
    cdef int32_t client_bytes
    cdef uint64_t tags, size, _
    if end < 14:
        return False
    r.api_key = <int16_t>be16(frame + 4)
    r.api_version = <int16_t>be16(frame + 6)
    r.correlation = <int32_t>be32(frame + 8)
    client_bytes = <int16_t>be16(frame + 12)
    at = 14
    if client_bytes > 0:
        at += client_bytes
    if at > end:
        return False
    if (
        0 <= r.api_key < API_KEYS and first_flexible[r.api_key] >= 0
        and r.api_version >= first_flexible[r.api_key]
    ):
        if not read_uvarint(frame, &at, end, &tags):
            return False
        for _ in range(tags):
            if not read_uvarint(frame, &at, end, &size) or not read_uvarint(frame, &at, end, &size):
                return False
            if size > end - at:
                return False
            at += size
    r.body = <uint32_t>at
    return True

cdef bint read_uvarint(const uint8_t *bytes, uint64_t *at, uint64_t end, uint64_t *value) noexcept nogil:
    cdef int shift = 0
    value[0] = 0
    while at[0] < end and shift < 35:
        value[0] |= (<uint64_t>(bytes[at[0]] & 127)) << shift
        at[0] += 1
        if not bytes[at[0] - 1] & 128:
            return True
        shift += 7
    return False

cdef inline bint is_alphanumeric(uint8_t a) noexcept nogil:
    return 48 <= a <= 57 or 65 <= a <= 90 or 97 <= a <= 122

cdef bint is_software(const uint8_t *text, uint64_t length) noexcept nogil:
    """Return whether a software name or version is valid (KIP-511): alphanumeric, with "-" and "." inside."""
    cdef uint64_t i
    if length == 0 or not is_alphanumeric(text[0]) or not is_alphanumeric(text[length - 1]):
        return False
    for i in range(length):
        if not is_alphanumeric(text[i]) and text[i] != c'-' and text[i] != c'.':
            return False
    return True

cdef bint read_software(const uint8_t *base, const Request *r, Software *found) noexcept nogil:
    """Find name and version of the client's software in an ApiVersions request. Return False if the request
    is malformed, or if name or version is invalid.
    """
    cdef const uint8_t *frame = base + r.block
    cdef uint64_t at = r.body
    if (
        not read_uvarint(frame, &at, r.needed, &found.name_bytes)
        or found.name_bytes == 0 or found.name_bytes - 1 > r.needed - at
    ):
        return False
    found.name_bytes -= 1
    found.name = at
    at += found.name_bytes
    if (
        not read_uvarint(frame, &at, r.needed, &found.version_bytes)
        or found.version_bytes == 0 or found.version_bytes - 1 > r.needed - at
    ):
        return False
    found.version_bytes -= 1
    found.version = at
    found.end = at + found.version_bytes
    return (
        is_software(frame + found.name, found.name_bytes)
        and is_software(frame + found.version, found.version_bytes)
    )
