"""Counts of requests and clients (Kafka: RequestChannel.Request.updateRequestMetrics)."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from mpbroker.ipc.meters cimport MetersRef
from mpbroker.ipc.session cimport SessionEntry
from mpbroker.ipc.slots cimport NETWORK_UNIT_NS
from mpbroker.network.processor.channel cimport Channel, Request
from mpbroker.network.processor.peers cimport Peers
from shm.counters cimport CountersRef, monotonic_ns

# A request that has ended, for the request log.
cdef struct Told:
    char *text                  # a copy; its reader frees it
    uint32_t length
    uint32_t throttle_ms
    uint64_t total_ns
    uint64_t request_queue_ns
    uint64_t local_ns
    uint64_t remote_ns
    uint64_t response_queue_ns
    uint64_t send_ns

cdef struct Metering:
    CountersRef *counters
    MetersRef *meters
    SessionEntry *sessions      # by channel
    Peers *peers
    uint64_t clock_ns           # now_ns, or later: when the last answer was written
    uint64_t *request_quotas    # the coordinator's word: some client's request time is limited
    bint timed                  # `request_quotas` when this turn began
    uint64_t answers_waiting    # answers that this turn found in the rings
    Told *told
    uint32_t told_count
    uint32_t told_room

cdef void begin_counting(Metering *m, uint64_t limit_bytes) noexcept nogil
cdef void count_client(Metering *m, Channel *c) noexcept nogil
cdef void note_finished(Metering *m, Request *r) noexcept nogil
cdef void note_size(Metering *m, Request *r) noexcept nogil
cdef list take_told(Metering *m)

cdef inline uint64_t since(uint64_t earlier_ns, uint64_t later_ns) noexcept nogil:
    return later_ns - earlier_ns if later_ns > earlier_ns else 0

cdef inline uint64_t begin_timing(Metering *m) noexcept nogil:
    """Return the present time in ns; 0 if no client has a quota on request time."""
    return monotonic_ns() if m.timed else 0

cdef inline void end_timing(Channel *c, uint64_t begun_ns) noexcept nogil:
    if begun_ns:
        c.network_ns += since(begun_ns, monotonic_ns())

cdef inline uint16_t network_units(Channel *c) noexcept nogil:
    """Return the time, in units of NETWORK_UNIT_NS, that this processor has spent on the connection since its
    last request: writing the last answer and reading this request, or the handshakes if this is the first
    request (Kafka: KafkaChannel.getAndResetNetworkThreadTimeNanos).
    """
    cdef uint64_t units = c.network_ns // NETWORK_UNIT_NS
    return <uint16_t>units if units < 0xFFFF else <uint16_t>0xFFFF
