from libc.stdint cimport int16_t

from mpbroker.network.processor.channel cimport Request

from mpbroker.protocol.api_keys import ApiKey

cdef enum:
    DEATHS_MAX = 2

assert (
    {one.name: one.value for one in Api}.items() <= {f"API_{key.name}": key.value for key in ApiKey}.items()
)


cdef bint is_administrative(int16_t api_key) noexcept nogil:
    """Return whether an API is for administrators. `api_key` must be at least FIRST_ADMINISTRATIVE_API."""
    if api_key == Api.API_INIT_PRODUCER_ID:
        return False
    if Api.API_ADD_PARTITIONS_TO_TXN <= api_key <= Api.API_TXN_OFFSET_COMMIT:
        return False
    if is_forwarded(api_key):           # the handler only hands it on to the coordinator
        return False
    return api_key not in (Api.API_SASL_AUTHENTICATE, Api.API_DESCRIBE_CLUSTER)

cdef inline bint is_forwarded(int16_t api_key) noexcept nogil:
    """Return whether the coordinator answers the API: OffsetCommit to ListGroups, DeleteGroups, OffsetDelete,
    DescribeTransactions, ListTransactions, ConsumerGroupHeartbeat, ConsumerGroupDescribe.
    """
    if Api.API_OFFSET_COMMIT <= api_key <= Api.API_LIST_GROUPS:
        return True
    return api_key in (
        Api.API_DELETE_GROUPS, Api.API_OFFSET_DELETE, Api.API_DESCRIBE_TRANSACTIONS,
        Api.API_LIST_TRANSACTIONS, Api.API_CONSUMER_GROUP_HEARTBEAT, Api.API_CONSUMER_GROUP_DESCRIBE,
    )

cdef bint is_repeatable(int16_t api_key) noexcept nogil:
    """Return whether a request may go to another handler after its handler died, because it only reads.
    Metadata may be repeated although it may create topics: it does not create an existing topic again.
    """
    return api_key in (
        Api.API_FETCH, Api.API_LIST_OFFSETS, Api.API_METADATA, Api.API_FIND_COORDINATOR, Api.API_API_VERSIONS,
        Api.API_DESCRIBE_CONFIGS, Api.API_DESCRIBE_CLUSTER,
    )

cdef bint may_try_again(Request *r) noexcept nogil:
    """Count the death of the request's handler. Return whether another handler may get the request: it only
    reads, is not large (which may be why its handler was killed as hanging), and no other handler died of it.
    """
    r.deaths += 1
    return is_repeatable(r.api_key) and r.needed < HEAVY_BYTES and r.deaths < DEATHS_MAX
