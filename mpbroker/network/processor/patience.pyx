from libc.stdint cimport int32_t, uint8_t, uint64_t

from mpbroker.network.processor.apis cimport Api
from mpbroker.network.processor.channel cimport Request
from mpbroker.network.processor.headers cimport be32, read_uvarint

cdef enum:
    PATIENT_BYTES_MAX = 1024    # a longer heartbeat is no usual one
    REBALANCE_TIMEOUT_BYTES = 4


cdef bint is_patient(const uint8_t *frame, const Request *r) noexcept nogil:
    """Return whether the request, whose header is parsed, is a heartbeat that brings no news."""
    if r.needed > PATIENT_BYTES_MAX:
        return False
    if r.api_key == Api.API_CONSUMER_GROUP_HEARTBEAT:
        return brings_no_news(frame, r)
    return r.api_key == Api.API_HEARTBEAT

cdef bint brings_no_news(const uint8_t *frame, const Request *r) noexcept nogil:
    """Return whether a ConsumerGroupHeartbeat is of a member that neither joins nor leaves, and whose
    subscription, assignor and partitions are as before.
    """
    cdef uint64_t at = r.body, end = r.needed
    # GroupId, MemberId.
    if not skip_string(frame, &at, end) or not skip_string(frame, &at, end) or end - at < 4:
        return False
    if <int32_t>be32(frame + at) <= 0:
        return False
    at += 4
    # InstanceId, RackId.
    if not skip_string(frame, &at, end) or not skip_string(frame, &at, end):
        return False
    at += REBALANCE_TIMEOUT_BYTES
    if at >= end:
        return False
    # Each of the other fields is null, and there are no tagged fields: a zero byte each.
    while at < end and frame[at] == 0:
        at += 1
    return at == end

cdef inline bint skip_string(const uint8_t *frame, uint64_t *at, uint64_t end) noexcept nogil:
    """Skip a compact string, which may be null. Return False if it does not end within the frame."""
    cdef uint64_t size
    if not read_uvarint(frame, at, end, &size):
        return False
    if size > 1:
        if size - 1 > end - at[0]:
            return False
        at[0] += size - 1
    return True
