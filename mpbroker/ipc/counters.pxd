"""Names of the numbers that each process keeps in its counter page.

All roles share one list, because a page is small and a reader adds the pages up.

Counts per API, per topic and per client are in `meters.pxd`. When a process is restarted, its successor
continues the counts.
"""

cpdef enum Counter:
    COUNT_CONNECTIONS_CREATED = 1
    COUNT_CONNECTIONS_CLOSED = 2
    COUNT_BYTES_IN = 4
    COUNT_BYTES_OUT = 5
    COUNT_REQUESTS = 6               # whole frames received (processor), requests taken (handler)
    COUNT_RESPONSES = 7
    COUNT_ERRORS = 8                 # exceptions answered with UNKNOWN_SERVER_ERROR or a close
    COUNT_WAKEUPS = 9
    COUNT_IDLE_NS = 10               # time asleep
    COUNT_RING_FULL = 11
    COUNT_MEMORY_FULL = 12           # reading stopped because the arena was full
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
    COUNT_QUEUED_REQUESTS = 27       # processor: waiting in its FIFO, or sent and not taken
    COUNT_ARENA_BYTES = 28           # in use
    COUNT_STARTED_NS = 29            # CLOCK_MONOTONIC when it began to serve; 0 while it does not
    COUNT_READS = 30                 # system calls on sockets (processor)
    COUNT_WRITES = 31
    COUNT_RESPONSE_BYTES_MAX = 32    # the largest response
    COUNT_RESPONSES_WAITING = 33     # found in the rings when they were read last (processor)
    COUNT_EXPIRED_KILLED = 34        # connections closed because their authentication had expired
    COUNT_AUTHENTICATIONS = 35
    COUNT_AUTHENTICATIONS_FAILED = 36
    COUNT_REAUTHENTICATIONS = 37
    COUNT_REAUTHENTICATIONS_FAILED = 38
    COUNT_AUTHENTICATIONS_NO_REAUTH = 39     # by clients that do not know how to authenticate again
    COUNT_ARENA_LIMIT_BYTES = 40
    COUNT_MEMORY_DEPLETED_NS = 41    # time in which allocation was refused
    COUNT_FETCHES_WATCHED = 42       # purgatory: watched keys, operations that wait
    COUNT_FETCHES_DELAYED = 43
    COUNT_FETCHES_EXPIRED = 44
    COUNT_PRODUCES_DELAYED = 45      # log: jobs that wait for their commit round
    COUNT_PRODUCES_EXPIRED = 46
    COUNT_THROTTLED_PRODUCE = 47     # channels that are muted by a quota now (processor)
    COUNT_THROTTLED_FETCH = 48
    COUNT_THROTTLED_REQUEST = 49
    COUNT_THROTTLED_MUTATION = 50
    COUNT_FETCHES_FAST = 53          # fetches that took the native turn
    COUNT_REBALANCES_DELAYED = 54    # coordinator: groups that wait for their members
    COUNT_HEARTBEATS_DELAYED = 55    # coordinator: members whose heartbeat is awaited
    COUNT_CALLS_DELAYED = 56         # requests that wait for the coordinator (handler)
    COUNT_FETCHES_INCREMENTAL = 57   # fetches that continued a session
    COUNT_FETCH_SESSIONS = 58
    COUNT_FETCH_SESSION_PARTITIONS = 59
    COUNT_FETCH_SESSIONS_EVICTED = 60
    COUNT_CLEANER_RECOPY_PERCENT = 61        # cleaner: its last run (bytes written, of bytes read)
    COUNT_CLEANER_BUFFER_PERCENT = 62
    COUNT_CLEANER_TIME_MS = 63
    COUNT_CLEANER_LAST_RUN_NS = 64           # CLOCK_MONOTONIC when it last looked for something to do
    COUNT_CLEANER_DELAY_MS = 65      # log: the longest that a record waits beyond max.compaction.lag.ms
    COUNT_CLEANER_DIRTY_PERCENT = 66  # log: of the dirtiest partition
    COUNT_UNCLEANABLE_PARTITIONS = 67        # log: partitions that cannot be cleaned
    COUNT_UNCLEANABLE_BYTES = 68
    COUNT_SEGMENTS_CLEANED = 69      # log: swapped for new ones
    COUNT_CLASSIC_GROUPS = 70        # coordinator, now and then: groups of the classic protocol
    COUNT_GROUPS_EMPTY = 71          # the same: groups of the consumer protocol, by state
    COUNT_GROUPS_ASSIGNING = 72
    COUNT_GROUPS_RECONCILING = 73
    COUNT_GROUPS_STABLE = 74
    COUNT_GROUP_REBALANCES = 75      # coordinator: epochs begun in them, but for members that were removed
    COUNT_SCRUB_BYTES = 80   # scrubber: bytes read since the broker began
    COUNT_SCRUB_BATCHES = 81   # whole batches among them
    COUNT_SCRUB_PASSES = 82   # passes that have ended
    COUNT_SCRUB_PASS_ENDED_MS = 83   # wall clock at the end of the last pass; 0: none is known
    COUNT_SCRUB_FINDINGS = 84   # known damaged ranges
    COUNT_SCRUB_PASS_BYTES = 85   # bytes of the current pass that are read
    COUNT_SCRUB_PASS_TOTAL = 86   # bytes that it has to read; 0 until they are counted
    COUNT_FETCHES_COLD = 87          # parts of files that were read from the disk for fetches (handler)
    COUNT_PARTITIONS_MOVING = 88     # log: partitions moving to another of its directories
    COUNT_PARTITIONS_WAITING = 89    # log: those that cannot be opened or made now, as on a full disk
    COUNT_REMOTE_COPIED_SEGMENTS = 90   # tier: segments that it has uploaded and that the ledger names
    COUNT_REMOTE_COPIED_BYTES = 91   # bytes of their .log
    COUNT_REMOTE_PENDING_SEGMENTS = 92   # sealed local segments that the object store does not have yet
    COUNT_REMOTE_PENDING_BYTES = 93
    COUNT_REMOTE_PENDING_SINCE_MS = 94   # wall clock when the oldest of them was last written; 0: none waits
    COUNT_REMOTE_ERRORS = 95         # requests of the store, and segments, that failed
    COUNT_REMOTE_FENCED = 96         # 1: another owner writes to the ledger, and this tier only reads
    COUNT_REMOTE_COMMITTED_MS = 97   # wall clock of the last ledger entry; 0: none since the broker began
    COUNT_REMOTE_DELETED_SEGMENTS = 98   # segments whose objects were deleted
    COUNT_REMOTE_DOWN_SINCE_MS = 99   # wall clock since when the store has failed; 0: it answers
    COUNT_REMOTE_CUTS = 111          # tier: cuts that the ledger has
    COUNT_REMOTE_CUTS_SKIPPED = 112  # cuts that were due and could not be made
    COUNT_REMOTE_CUT_MS = 113        # wall clock of the newest one's instant; 0: none since the broker began
    COUNT_REMOTE_CUT_PAUSE_US = 114  # for how long that one stopped all other processes
    COUNTERS = 120

cpdef enum Histogram:
    TIME_APPEND_NS = 0               # log: one round
    TIME_COMMIT_NS = 1               # log: one durable commit
    BATCHES_PER_ROUND = 2
    REQUESTS_PER_TURN = 3
    TIME_REAUTHENTICATION_NS = 4
    HISTOGRAMS = 5
