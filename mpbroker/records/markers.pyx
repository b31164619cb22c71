"""Reads transaction markers, which `mpbroker.records.builder` builds (see `markers.pxd`).

    key      version i16 | type i16: 0 abort, 1 commit; a partition ignores other types
    value    version i16 | coordinator epoch i32
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from mpbroker.records.batch cimport (
    ATTRIBUTES_AT,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    RECORD_COUNT_AT,
    RecordView,
    read_record,
)
from mpbroker.records.wire cimport load_u16, load_u32

cdef enum:
    KEY_BYTES = 4
    VALUE_BYTES = 6


cdef bint read_marker(const uint8_t *batch, int64_t length, Marker *marker) noexcept nogil:
    """Read the marker of a batch with a whole header into `marker`, and return True.

    Return False if the batch does not end a transaction: it is no marker, or the log cleaner emptied it.
    """
    cdef RecordView record
    cdef const uint8_t *at = batch + BATCH_HEADER_BYTES
    cdef int attributes = load_u16(batch + ATTRIBUTES_AT)
    if not attributes & CONTROL_BIT or attributes & CODEC_MASK or load_u32(batch + RECORD_COUNT_AT) == 0:
        return False
    if read_record(&at, batch + length, &record):
        return False
    if (
        record.key == NULL or record.key_bytes < KEY_BYTES
        or record.value == NULL or record.value_bytes < VALUE_BYTES
    ):
        return False
    marker.kind = <int16_t>load_u16(record.key + 2)
    marker.coordinator_epoch = <int32_t>load_u32(record.value + 2)
    return marker.kind == ABORT or marker.kind == COMMIT


def marker_of(const uint8_t[::1] batch not None) -> tuple[int, int] | None:
    """Return (ABORT or COMMIT, coordinator epoch) of a whole batch; None if the batch is no marker."""
    cdef Marker marker
    if batch.shape[0] < BATCH_HEADER_BYTES or not read_marker(&batch[0], batch.shape[0], &marker):
        return None
    return marker.kind, marker.coordinator_epoch
