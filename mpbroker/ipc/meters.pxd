"""Pages for what is counted per API, per topic and per kind of client: one set for each process, which alone writes it.
The only place that knows their offsets. (What a process counts of itself alone is in `counters.pxd`.)

The pages are sparse blocks of the public region: a part takes memory when it is first written to. The process then
reserves that part of the file (so that a full tmpfs is a lost count and not a SIGBUS) and sets its bit in `meters_used`;
a reader looks at nothing whose bit is not set. What cannot be reserved is counted into private memory, and `LOST` grows.

    meters_used     per process: a bit per API page, per error page, per part of topic cells and names; LOST; CLIENTS
    meters_apis     per process and API: requests by version, then ApiHistogram. Processors, when a request has ended;
                    handlers, CONVERSION_NS and TEMPORARY_BYTES alone
    meters_errors   per process and API: answers by error code. Whoever makes the answer
    meters_topics   per process and partition table slot: a cell of generation and TopicMeter
    meters_names    per partition table slot: generation, length, name of the topic. The log process
    meters_clients  per process: CLIENTS entries of name, version, count. Processors

A cell counts for the generation of the slot that it begins with. Its writer adds it to the retired counts, which stand in
`meters_used`, before it zeroes it for another generation: cells and retired counts together never fall.
(Kafka: RequestMetrics, BrokerTopicMetrics, the `connections` sensors of Selector.)
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shm.atomics cimport load_relaxed, store_relaxed
from shm.counters cimport HISTOGRAM_WORDS, histogram_note

cdef enum:
    API_PAGES = 136
    VERSIONS = 32
    HISTOGRAMS_AT = 64          # in words
    API_PAGE_BYTES = 24576
    ERRORS = 192                # error codes from -1 on; the last one is for all that are larger
    ERROR_PAGE_BYTES = 2048
    CELL_WORDS = 16
    CELL_BYTES = 128
    CELLS_PER_PART = 32         # a part is a page of memory
    NAME_BYTES = 512
    NAMES_PER_PART = 8
    CLIENTS = 128
    CLIENT_BYTES = 192
    CLIENT_TEXT_BYTES = 64
    PART_BYTES = 4096
    # words of `meters_used`
    USED_APIS = 0
    USED_ERRORS = 3
    USED_CLIENTS = 6
    USED_LOST = 7
    USED_RETIRED = 8            # words of TopicMeter
    USED_TOPICS = 24

cpdef enum ApiPage:
    """Pages that are not named by an API key. A fetch of a follower is counted in its own page only."""
    FETCH_FOLLOWER = 128
    ADD_PARTITIONS_TO_TXN_VERIFICATION = 129

cpdef enum ApiHistogram:
    """All in nanoseconds or bytes. Those but TOTAL_NS leave out requests for which they are zero."""
    REQUEST_QUEUE_NS = 0        # frame whole -> taken by a handler
    LOCAL_NS = 1                # taken -> answered, handed on or parked
    REMOTE_NS = 2               # ... -> answered
    THROTTLE_NS = 3
    RESPONSE_QUEUE_NS = 4       # answered -> dequeued by the processor
    RESPONSE_SEND_NS = 5        # ... -> last byte written
    TOTAL_NS = 6                # the sum of all but THROTTLE_NS
    REQUEST_BYTES = 7           # of the body
    CONVERSION_NS = 8
    TEMPORARY_BYTES = 9
    API_HISTOGRAMS = 10

cpdef enum TopicMeter:
    """Words of a topic's cell."""
    TOPIC_GENERATION = 0
    MESSAGES_IN = 1
    BYTES_IN = 2
    BYTES_OUT = 3
    BYTES_REJECTED = 4
    FAILED_PRODUCE = 5
    FAILED_FETCH = 6
    TOTAL_PRODUCE = 7
    TOTAL_FETCH = 8
    PRODUCE_CONVERSIONS = 9
    FETCH_CONVERSIONS = 10
    NO_KEY_COMPACTED = 11
    INVALID_MAGIC = 12
    INVALID_CRC = 13
    INVALID_OFFSET_OR_SEQUENCE = 14
    TOPIC_METERS = 15

cdef struct MetersRef:
    int fd
    uint64_t *used
    uint64_t *apis[API_PAGES]       # NULL: not reserved yet
    uint64_t *errors[API_PAGES]
    uint8_t *apis_base
    uint8_t *errors_base
    uint8_t *topics_base
    uint8_t *names_base
    uint8_t *clients_base
    int64_t apis_at                 # in the file
    int64_t errors_at
    int64_t topics_at
    int64_t names_at
    int64_t clients_at
    uint32_t slots
    uint32_t used_names             # first word of the names' bits
    uint64_t *scratch               # private: for what could not be reserved

cdef uint64_t *open_api(MetersRef *meters, int api) noexcept nogil
cdef uint64_t *open_errors(MetersRef *meters, int api) noexcept nogil
cdef uint64_t *open_cell(MetersRef *meters, uint32_t slot, uint32_t generation) noexcept nogil
cdef int client_enter(MetersRef *meters, const char *name, const char *version) noexcept nogil
cdef void client_leave(MetersRef *meters, int client) noexcept nogil

cdef inline uint64_t *api_page(MetersRef *meters, int api) noexcept nogil:
    cdef uint64_t *page = meters.apis[api] if 0 <= api < API_PAGES else meters.scratch
    return page if page != NULL else open_api(meters, api)

cdef inline void count_version(uint64_t *page, int version) noexcept nogil:
    cdef uint64_t *word = page + (version if 0 <= version < VERSIONS else VERSIONS - 1)
    store_relaxed(word, word[0] + 1)

cdef inline void note_api(uint64_t *page, int histogram, uint64_t value) noexcept nogil:
    histogram_note(page + HISTOGRAMS_AT + histogram * HISTOGRAM_WORDS, value, 1)

cdef inline void count_error(MetersRef *meters, int api, int code, uint64_t times) noexcept nogil:
    cdef uint64_t *page = meters.errors[api] if 0 <= api < API_PAGES else meters.scratch
    cdef uint64_t *word
    if page == NULL:
        page = open_errors(meters, api)
    word = page + (code + 1 if -1 <= code < ERRORS - 2 else ERRORS - 1)
    store_relaxed(word, word[0] + times)

cdef inline uint64_t *topic_cell(MetersRef *meters, uint32_t slot, uint32_t generation) noexcept nogil:
    """The words of TopicMeter for the partition in that slot of the table."""
    cdef uint64_t *cell
    cdef uint32_t part = slot // CELLS_PER_PART
    if slot < meters.slots and load_relaxed(&meters.used[USED_TOPICS + part // 64]) >> (part % 64) & 1:
        cell = <uint64_t *>(meters.topics_base + <uint64_t>slot * CELL_BYTES)
        if cell[<int>TopicMeter.TOPIC_GENERATION] == generation:
            return cell
    return open_cell(meters, slot, generation)

cdef inline void count_topic(uint64_t *cell, int meter, uint64_t amount) noexcept nogil:
    store_relaxed(&cell[meter], cell[meter] + amount)


cdef class Meters:
    cdef MetersRef ref
    cdef object keep
    cdef readonly int process
    cdef _take_over(self)
