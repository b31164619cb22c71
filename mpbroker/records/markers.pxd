"""The control batch that ends a transaction in a partition (Kafka: EndTransactionMarker, KIP-98)."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

cpdef enum:                     # Kafka: ControlRecordType
    ABORT = 0
    COMMIT = 1

cdef struct Marker:
    int kind
    int32_t coordinator_epoch

cdef bint read_marker(const uint8_t *batch, int64_t length, Marker *marker) noexcept nogil
