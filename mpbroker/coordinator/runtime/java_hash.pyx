"""Java's hash of a string, by which a coordinator's topic is partitioned.

The hash is not cached: clients choose the names, and a cache would keep very long names in memory.
"""
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint32_t


def java_hash(str text not None) -> int:
    """Return Kafka's Utils.abs(text.hashCode()), which is not negative."""
    cdef bytes data = text.encode("utf-16-le", "surrogatepass")
    cdef const unsigned char *unit = <const unsigned char *>PyBytes_AS_STRING(data)
    cdef const unsigned char *end = unit + len(data)
    cdef uint32_t value = 0
    while unit < end:
        value = 31 * value + (unit[0] | (<uint32_t>unit[1] << 8))
        unit += 2
    if value == <uint32_t>1 << 31:
        return 0
    return value if value < <uint32_t>1 << 31 else -value
