"""Names of the numbers that each process keeps in its counter page. One list for all roles: a page is small and a reader adds up."""

cpdef enum Counter:
    COUNT_CONNECTIONS = 0            # open now (processor)
    COUNT_CONNECTIONS_CREATED = 1
    COUNT_CONNECTIONS_CLOSED = 2
    COUNT_CONNECTIONS_REFUSED = 3
    COUNT_BYTES_IN = 4
    COUNT_BYTES_OUT = 5
    COUNT_REQUESTS = 6               # whole frames received (processor), requests taken (handler)
    COUNT_RESPONSES = 7
    COUNT_ERRORS = 8                 # exceptions answered with UNKNOWN_SERVER_ERROR or a close
    COUNT_WAKEUPS = 9
    COUNT_IDLE_NS = 10               # time asleep
    COUNT_RING_FULL = 11
    COUNT_MEMORY_FULL = 12           # reading stopped for want of arena space
    COUNT_PRODUCE_FAST = 13          # produce requests that took the native turn (handler, log)
    COUNT_PRODUCE_SLOW = 14
    COUNT_FETCHES = 15
    COUNT_FETCHES_PARKED = 16
    COUNT_BATCHES_APPENDED = 17
    COUNT_RECORDS_APPENDED = 18
    COUNT_BYTES_APPENDED = 19
    COUNT_DUPLICATES = 20
    COUNT_COMMIT_ROUNDS = 21
    COUNT_SEGMENTS_ROLLED = 22
    COUNT_FENCES = 23
    COUNT_RESTARTS = 24              # supervisor: children replaced
    COUNT_PARTITIONS = 25
    COUNT_TOPICS = 26
    COUNT_QUEUED_REQUESTS = 27       # processor: FIFO + sent and not taken
    COUNT_ARENA_BYTES = 28           # in use
    COUNT_MEMORY_DEPLETED_NS = 29    # time in which requests waited for memory
    COUNTERS = 32

cpdef enum Histogram:
    TIME_TOTAL_NS = 0                # processor: frame whole -> last byte written
    TIME_REQUEST_QUEUE_NS = 1        # handler: frame whole -> taken
    TIME_LOCAL_NS = 2                # handler: taken -> answered or handed on
    TIME_APPEND_NS = 3               # log: one round
    TIME_COMMIT_NS = 4               # log: one durable commit
    TIME_RESPONSE_QUEUE_NS = 5       # processor: answered -> dequeued
    BATCHES_PER_ROUND = 6
    REQUESTS_PER_TURN = 7
    HISTOGRAMS = 8
