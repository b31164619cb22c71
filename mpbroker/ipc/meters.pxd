"""Pages for counts per API, per topic and per kind of client.

Each process has its own set of pages and alone writes it. The offsets in pages are defined in this file only.
(Counts that a process keeps of itself are in `counters.pxd`.)

The pages are sparse blocks of the public region: a part takes memory when it is first written to. Before that
the process reserves the part in the file, so that a full tmpfs costs counts and does not kill the process by
SIGBUS, and sets the part's bit in `meters_used`. Readers skip parts whose bit is not set. If a part cannot be
reserved, its counts go to private memory, which no reader sees, and `LOST` grows.

    meters_used     per process: a bit per API page, per error page, per part of topic cells and names; per
                    kind of CLIENTS, per group of QUOTAS; LOST
    meters_apis     per process and API: requests by version, then ApiHistogram. Processors, when a request
                    has ended; handlers, CONVERSION_NS and TEMPORARY_BYTES alone
    meters_errors   per process and API: answers by error code. The process that makes the answer
    meters_topics   per process and partition table slot: a cell of generation and TopicMeter
    meters_names    per partition table slot: generation, length, name of the topic; only for the first slot
                    that a topic has in a log process. Log processes
    meters_homes    per partition table slot: generation; slot << 32 | generation of the entry in
                    meters_names that has the topic's name. Not sparse. Log processes
    meters_clients  per process and ClientKind: CLIENTS entries of name, version, count. Processors
    meters_quotas   per process: a row for each kind of quota, all clients together; then, in groups of 8 by
                    their key in the rates (shm/rates.pxd), rows of clients. Handlers; the coordinator for
                    controller mutations

A cell begins with the generation of the slot for which it counts. Before its writer zeroes a cell for another
generation, it adds the cell to the retired counts in `meters_used`, so the sum of cells and retired counts
never falls. If room is short, the row of a client that was idle for a minute is given to another client; the
counts of all clients together keep everything. (Kafka: RequestMetrics, BrokerTopicMetrics, the `connections`
sensors of Selector, ClientQuotaManager.)
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
    QUOTA_GROUPS = 65           # the first one has the rows of all clients together
    QUOTA_GROUP = 8             # rows: a page of memory
    QUOTA_TEXT_BYTES = 212
    PART_BYTES = 4096
    # words of `meters_used`
    USED_APIS = 0
    USED_ERRORS = 3
    USED_CLIENTS = 6
    USED_LOST = 7
    USED_RETIRED = 8            # words of TopicMeter
    USED_QUOTAS = 24
    USED_TOPICS = 26

cpdef enum ApiPage:
    """Pages of requests that Kafka counts apart. A fetch of a follower is counted in its own page only."""
    FETCH_FOLLOWER = 128
    ADD_PARTITIONS_TO_TXN_VERIFICATION = 129

cpdef enum ApiHistogram:
    """Histograms of requests in nanoseconds or bytes. Values of zero are recorded for TOTAL_NS only."""
    REQUEST_QUEUE_NS = 0        # from the whole frame to its taking by a handler
    LOCAL_NS = 1                # from then until it is answered, handed on or parked
    REMOTE_NS = 2               # from then until it is answered
    THROTTLE_NS = 3
    RESPONSE_QUEUE_NS = 4       # from the answer to its dequeuing by the processor
    RESPONSE_SEND_NS = 5        # from then until the last byte is written
    TOTAL_NS = 6                # the sum of all but THROTTLE_NS
    REQUEST_BYTES = 7           # of the body
    CONVERSION_NS = 8
    TEMPORARY_BYTES = 9
    API_HISTOGRAMS = 10

cpdef enum ClientKind:
    CLIENT_SOFTWARE = 0         # by name and version, as ApiVersions has them
    CLIENT_CIPHER = 1           # by cipher suite and protocol of TLS
    CLIENT_KINDS = 2

cpdef enum QuotaKind:
    QUOTA_PRODUCE = 0
    QUOTA_FETCH = 1
    QUOTA_REQUEST = 2
    QUOTA_MUTATION = 3
    QUOTA_KINDS = 4

cpdef enum QuotaWord:
    QUOTA_KEY = 0               # 0: a free row
    QUOTA_OF = 1                # QuotaKind
    QUOTA_USED = 2              # bytes, ns of processors and handlers, partitions
    QUOTA_EXEMPT = 3            # ns that no quota limits (all clients together)
    QUOTA_PAUSES = 4            # requests that were answered with a pause
    QUOTA_PAUSES_MS = 5
    QUOTA_UNMEASURED = 6        # requests that found no room in the rates: not limited (all clients together)
    QUOTA_LAST_MS = 7
    QUOTA_TOKENS_MILLI = 8      # signed, at that time; they grow by the rate up to the burst
    QUOTA_RATE_MILLI = 9
    QUOTA_BURST_MILLI = 10
    QUOTA_WORDS = 11

cpdef enum TopicMeter:
    """Indices of the words in a cell, which has the counts for one partition of a topic."""
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

cdef struct QuotaRow:
    uint64_t words[11]              # QuotaWord
    char user[QUOTA_TEXT_BYTES]
    char client_id[QUOTA_TEXT_BYTES]

cdef struct MetersRef:
    int fd
    uint64_t *used
    uint64_t *apis[API_PAGES]       # NULL: not reserved yet
    uint64_t *errors[API_PAGES]
    uint8_t *apis_base
    uint8_t *errors_base
    uint8_t *topics_base
    uint8_t *names_base
    uint64_t *homes
    uint8_t *clients_base
    QuotaRow *quotas_base
    int64_t apis_at                 # in the file
    int64_t errors_at
    int64_t topics_at
    int64_t names_at
    int64_t clients_at
    int64_t quotas_at
    uint32_t slots
    uint32_t used_names             # first word of the names' bits
    bint no_quotas                  # a reservation failed: not tried again with every request
    uint64_t *scratch               # private: for what could not be reserved

cdef uint64_t *open_api(MetersRef *meters, int api) noexcept nogil
cdef uint64_t *open_errors(MetersRef *meters, int api) noexcept nogil
cdef uint64_t *open_cell(MetersRef *meters, uint32_t slot, uint32_t generation) noexcept nogil
cdef bint open_quotas(MetersRef *meters, uint32_t group) noexcept nogil
cdef int client_enter(MetersRef *meters, int kind, const char *name, const char *version) noexcept nogil
cdef void client_leave(MetersRef *meters, int kind, int client) noexcept nogil

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
    """Return the cell (words by TopicMeter) for the partition in a slot of the partition table."""
    cdef uint64_t *cell
    cdef uint32_t part = slot // CELLS_PER_PART
    if slot < meters.slots and load_relaxed(&meters.used[USED_TOPICS + part // 64]) >> (part % 64) & 1:
        cell = <uint64_t *>(meters.topics_base + <uint64_t>slot * CELL_BYTES)
        if cell[<int>TopicMeter.TOPIC_GENERATION] == generation:
            return cell
    return open_cell(meters, slot, generation)

cdef inline void count_topic(uint64_t *cell, int meter, uint64_t amount) noexcept nogil:
    store_relaxed(&cell[meter], cell[meter] + amount)


cdef inline bint has_quotas(MetersRef *meters, uint32_t group) noexcept nogil:
    return load_relaxed(&meters.used[USED_QUOTAS + group // 64]) >> (group % 64) & 1

cdef inline void add_quota(uint64_t *row, int word, uint64_t amount) noexcept nogil:
    store_relaxed(&row[word], row[word] + amount)

cdef inline uint64_t *quota_of_all(MetersRef *meters, int kind) noexcept nogil:
    """Return the row (words by QuotaWord) that sums up all clients with this kind of quota."""
    if not has_quotas(meters, 0) and not open_quotas(meters, 0):
        return meters.scratch
    return meters.quotas_base[kind].words

cdef inline uint64_t *quota_of(MetersRef *meters, uint64_t key) noexcept nogil:
    """Return the row (words by QuotaWord) of the client with this quota key; NULL if it has no row."""
    cdef uint32_t group = 1 + <uint32_t>((key >> 32) % (QUOTA_GROUPS - 1)), i
    cdef QuotaRow *rows = meters.quotas_base + group * QUOTA_GROUP
    if has_quotas(meters, group):
        for i in range(QUOTA_GROUP):
            if rows[(key + i) % QUOTA_GROUP].words[<int>QuotaWord.QUOTA_KEY] == key:
                return rows[(key + i) % QUOTA_GROUP].words
    return NULL

cdef inline void note_used(
    MetersRef *meters, int kind, uint64_t key, int64_t value, int64_t now_ms
) noexcept nogil:
    """Add what a client has used of a quota; a negative value was given back."""
    cdef uint64_t *row = quota_of(meters, key)
    add_quota(quota_of_all(meters, kind), QuotaWord.QUOTA_USED, <uint64_t>value)
    if row != NULL:
        add_quota(row, QuotaWord.QUOTA_USED, <uint64_t>value)
        store_relaxed(&row[<int>QuotaWord.QUOTA_LAST_MS], <uint64_t>now_ms)

cdef inline void note_pause(MetersRef *meters, int kind, uint64_t key, uint64_t pause_ms) noexcept nogil:
    """Count a pause that a client has to make because of its quota."""
    cdef uint64_t *row = quota_of(meters, key)
    add_quota(quota_of_all(meters, kind), QuotaWord.QUOTA_PAUSES, 1)
    add_quota(quota_of_all(meters, kind), QuotaWord.QUOTA_PAUSES_MS, pause_ms)
    if row != NULL:
        add_quota(row, QuotaWord.QUOTA_PAUSES, 1)
        add_quota(row, QuotaWord.QUOTA_PAUSES_MS, pause_ms)


cdef class Meters:
    cdef MetersRef ref
    cdef object keep
    cdef readonly int process
    # by topic id: the slot whose entry has the topic's name, as in `meters_homes`
    cdef dict home_of
    cdef _take_over(self)
    cdef bint _put_name(self, uint32_t slot, uint32_t generation, bytes text) except -1
