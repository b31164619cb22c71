"""Java's hash of a string: it chooses the partition of a coordinator's topic for a name.

It is computed each time: names are chosen by clients, and a cache would keep the longest of them.
"""
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint32_t


def java_hash(str text not None) -> int:
    """Return Utils.abs(text.hashCode()), as Kafka computes it."""
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
