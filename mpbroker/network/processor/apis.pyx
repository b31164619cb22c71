from libc.stdint cimport int16_t

from mpbroker.network.processor.channel cimport Request

from mpbroker.protocol.api_keys import ApiKey

cdef enum:
    DEATHS_MAX = 2

assert (
    {one.name: one.value for one in Api}.items() <= {f"API_{key.name}": key.value for key in ApiKey}.items()
)


cdef bint is_administrative(int16_t api_key) noexcept nogil:
    """Return whether an API is for administrators. Its key must be at least FIRST_ADMINISTRATIVE_API."""
    if api_key == Api.API_INIT_PRODUCER_ID:
        return False
    if Api.API_ADD_PARTITIONS_TO_TXN <= api_key <= Api.API_TXN_OFFSET_COMMIT:
        return False
    if is_forwarded(api_key):           # the handler only hands it on to the coordinator
        return False
    return api_key not in (
        Api.API_SASL_AUTHENTICATE, Api.API_DESCRIBE_CLUSTER, Api.API_CONSUMER_GROUP_HEARTBEAT
    )

cdef inline bint is_forwarded(int16_t api_key) noexcept nogil:
    """Return whether the coordinator answers the API: OffsetCommit to ListGroups, DeleteGroups, OffsetDelete,
    DescribeTransactions, ListTransactions.
    """
    if (
        Api.API_OFFSET_COMMIT <= api_key <= Api.API_LIST_GROUPS
        or api_key == Api.API_DELETE_GROUPS or api_key == Api.API_OFFSET_DELETE
    ):
        return True
    return api_key == Api.API_DESCRIBE_TRANSACTIONS or api_key == Api.API_LIST_TRANSACTIONS

cdef bint is_repeatable(int16_t api_key) noexcept nogil:
    """Return whether a request may go to another handler after its handler died, because it only reads.
    Metadata may create topics, but creates none that exists.
    """
    return api_key in (
        Api.API_FETCH, Api.API_LIST_OFFSETS, Api.API_METADATA, Api.API_FIND_COORDINATOR, Api.API_API_VERSIONS,
        Api.API_DESCRIBE_CONFIGS, Api.API_DESCRIBE_CLUSTER,
    )

cdef bint may_try_again(Request *r) noexcept nogil:
    """Return whether to give the request to another handler after a death. One that kills its handlers must
    not go through all of them, and a large one may be why its handler was killed as hanging.
    """
    r.deaths += 1
    return is_repeatable(r.api_key) and r.needed < HEAVY_BYTES and r.deaths < DEATHS_MAX
