"""The APIs whose requests the processor's native turn treats differently, with their keys."""
from libc.stdint cimport int16_t

from mpbroker.network.processor.channel cimport Request

cdef enum:
    API_KEYS = 128
    HEAVY_BYTES = 1 << 18           # a request of this size goes to a handler alone
    IN_PIECES_BYTES = 3000          # a shorter one names fewer things than handlers do at once

# The APIs that the turn treats differently: all that it knows of them (ApiKey, checked at import).
cpdef enum Api:
    API_PRODUCE = 0
    API_FETCH = 1
    API_LIST_OFFSETS = 2
    API_METADATA = 3
    API_OFFSET_COMMIT = 8
    API_FIND_COORDINATOR = 10
    API_HEARTBEAT = 12
    API_LIST_GROUPS = 16
    API_SASL_HANDSHAKE = 17
    API_API_VERSIONS = 18
    API_CREATE_TOPICS = 19
    API_INIT_PRODUCER_ID = 22
    API_ADD_PARTITIONS_TO_TXN = 24
    API_TXN_OFFSET_COMMIT = 28
    API_DESCRIBE_CONFIGS = 32
    API_SASL_AUTHENTICATE = 36
    API_DELETE_GROUPS = 42
    API_OFFSET_DELETE = 47
    API_DESCRIBE_CLUSTER = 60
    API_DESCRIBE_TRANSACTIONS = 65
    API_LIST_TRANSACTIONS = 66
    API_CONSUMER_GROUP_HEARTBEAT = 68
    API_CONSUMER_GROUP_DESCRIBE = 69

cdef enum:
    FIRST_ADMINISTRATIVE_API = Api.API_CREATE_TOPICS    # APIs before it are asked for all the time

cdef bint is_administrative(int16_t api_key) noexcept nogil
cdef bint is_repeatable(int16_t api_key) noexcept nogil
cdef bint may_try_again(Request *r) noexcept nogil

cdef inline bint is_heavy(Request *r) noexcept nogil:
    """Return whether a request may cost a handler much time: it is large, or for administrators."""
    if r.needed >= HEAVY_BYTES:
        return True
    return r.api_key >= FIRST_ADMINISTRATIVE_API and is_administrative(r.api_key)
