"""The state of the processor's native turn; turn.pyx has the phases."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.ipc.connections cimport LedgerRef
from mpbroker.ipc.meters cimport Meters, MetersRef
from mpbroker.ipc.session cimport SessionEntry, Sessions
from mpbroker.network.handover cimport Handover
from mpbroker.network.processor.channel cimport Channel, WindowEntry
from mpbroker.network.processor.files cimport FileTable
from shm.arena cimport ArenaRef
from shm.counters cimport CountersRef
from shm.doorbell cimport BellRef
from shm.ring cimport RingRef, Slot

cdef enum:
    HANDLERS_MAX = 33          # with those of the control plane
    LOGS_MAX = 7
    REQUEST_RING_PLACES = 1024  # mpbroker.ipc.topology.REQUEST_RING_SLOTS, checked at import
    EVENTS_MAX = 512
    MUTE_TABLE_BYTES = 30       # states times events of mute.py
    FIFO_PLACES = 65536         # a power of two; at least one for each channel and window entry there can be
    WINDOW_ENTRIES = 32768      # requests in windows of all channels together
    ENTRY_TAG = 1 << 31         # in the FIFO: marks a request of the channel's window
    API_KEYS = 128
    LISTENERS = 256             # mpbroker.config.listeners.MAX_LISTENERS, checked at import
    ACCEPTORS = 2               # mpbroker.ipc.topology.ACCEPTORS, checked at import
    LOG_LEVELS_ABOVE = 3        # of mpbroker.network.processor, its room and root, checked at import
    CLOSE_REASONS = 32          # room for each CloseReason
    API_VERSIONS_MOST = 8       # versions of ApiVersions, from 0 on

# The APIs that the turn treats differently: all that it knows of them (ApiKey, checked at import).
cpdef enum Api:
    API_PRODUCE = 0
    API_FETCH = 1
    API_LIST_OFFSETS = 2
    API_METADATA = 3
    API_OFFSET_COMMIT = 8
    API_FIND_COORDINATOR = 10
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

cdef struct Peer:
    uint32_t number             # handler number
    uint32_t process            # process index
    bint known                  # its rings are bound
    bint alive                  # it has a process
    bint leaving                # finishes its requests, and gets no new ones
    bint wants_room             # this process asked for room in `requests`
    RingRef requests            # to the handler
    RingRef answers             # from the handler
    BellRef bell
    uint8_t *arena              # its reply arena
    uint64_t *heavy             # the handler's word: since when it has a heavy request
    uint64_t heavy_until        # position in `requests` after the last heavy request from here
    uint64_t counted            # position up to which `requests` was seen taken
    uint32_t untaken            # requests in the ring from `counted` on
    uint8_t is_request[REQUEST_RING_PLACES]
    uint32_t load               # requests with the handler that are not parked
    bint touched                # this turn staged something that the handler must wake up for
    Slot *owed                  # descriptors that did not fit into `requests`
    uint32_t owed_count
    uint32_t owed_places

cdef struct Event:
    uint32_t channel
    uint32_t reason
    uint64_t connection
    int64_t detail

cdef struct Links:
    uint32_t before
    uint32_t after

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

cdef struct ChannelTurn:
    uint32_t process            # process index of this processor
    int epoll_fd
    int poll_errno              # errno of the last epoll_wait, if that failed
    int handover_fd
    Handover handed             # the last message taken from it, and its socket
    int handed_fd
    bint handed_waits           # `handed` is for Python
    uint8_t listener_kinds[LISTENERS]   # IS_PLAIN, IS_PRIVILEGED; 0: Python serves its connections
    uint32_t connections_max
    uint32_t open_count
    LedgerRef ledger            # of this processor's connections
    BellRef acceptor_bells[ACCEPTORS]
    bint made_room              # a connection was taken or closed: an acceptor may wait for that
    # levels that clients have given to this process's logger and to those above it; 0: none
    uint64_t *log_levels[LOG_LEVELS_ABOVE]
    uint64_t log_level_at_start
    uint8_t reason_levels[CLOSE_REASONS]    # of the lines about closed connections
    # by version: bodies of the answers to ApiVersions; NULL: none is prepared
    const uint8_t *api_versions[API_VERSIONS_MOST]
    uint32_t api_versions_bytes[API_VERSIONS_MOST]
    uint64_t *request_log       # the level of the request log; 0: as it was at the start, off
    ArenaRef *arena
    uint64_t *request_limit     # the supervisor's word: the arena's limit
    CountersRef *counters
    MetersRef *meters
    BellRef bell
    Peer handlers[HANDLERS_MAX]
    uint32_t handler_count      # places in use in `handlers`
    uint32_t last_handler       # number of the handler that got the last batch: a tie begins here
    uint32_t last_session_keeper    # number of the handler that was last given a fetch that makes a session
    RingRef log_answers[LOGS_MAX]
    BellRef log_bells[LOGS_MAX]
    uint32_t log_count
    Channel *channels
    SessionEntry *sessions      # by channel
    uint32_t channel_places
    uint32_t *free_channels
    uint32_t free_count
    uint32_t channels_used      # places from here on were never used: they are zero, and take no memory
    WindowEntry *entries        # requests in windows
    uint32_t *free_entries
    uint32_t free_entry_count
    uint32_t entries_used       # places from here on were never used
    uint32_t window_most        # requests of a connection that may be under way
    uint8_t in_window[API_KEYS] # whether the API's requests go into windows (window.py)
    Links *links                # the list in order of activity: by channel, and after them the list's head
    uint64_t idle_ns            # connections.max.idle.ms; 0: for ever
    uint32_t *timers            # heap of throttled channels, from 1
    uint32_t timer_count
    uint8_t mute_table[MUTE_TABLE_BYTES]
    uint32_t *fifo              # requests that wait for a handler: channels, with ENTRY_TAG for their windows
    uint64_t fifo_head
    uint64_t fifo_tail
    uint64_t untaken            # requests given to handlers that have not taken them
    # a word per process: requests in its FIFO or untaken; each processor writes its own
    uint64_t *queued
    uint64_t queued_elsewhere
    uint64_t *request_quotas    # the coordinator's word: some client's request time is limited
    bint timed                  # `request_quotas` when this turn began
    uint64_t queue_floor        # how many may be queued here, however many others have
    uint32_t *held              # channels that wait for room in the queue, the longest waiting first
    uint32_t held_count
    uint32_t *marked            # channels that Python must serve; twice, if a place was reused meanwhile
    uint32_t marked_count
    uint32_t *deferred          # channels to serve in the next turn
    uint32_t deferred_count
    uint32_t *deferred_now
    uint32_t *starved           # channels that wait for memory, the longest waiting first
    uint32_t starved_count
    uint64_t *replies_out       # a word per handler: some reply waits for room in its answer ring
    uint64_t dry_since_ns       # since when an allocation failed and no memory came free; 0: not
    # the arena's releases when it last refused an allocation; `refused_limit`: its limit then
    uint64_t refused_at
    uint64_t refused_limit
    uint64_t kept_bytes         # frames of parked requests, outside the arena
    bint beyond                 # the next allocation may go beyond the limit
    uint64_t stall_ns
    uint64_t next_stall_check_ns
    uint64_t dice
    uint32_t found              # events of the last turn, or 1 if something else was to do
    bint soon                   # a deferred channel can go on at once: do not sleep
    uint32_t next_request
    uint64_t next_connection
    uint32_t frame_bytes_max
    uint32_t queued_requests_max
    bint stopping
    # the supervisor's words for this process; `order_seen`, `fence_order_seen`: what Python has seen of them
    uint64_t *order
    uint64_t *fence_order
    uint64_t *evictions_asked   # in the ledger of connections
    uint64_t *evictions_done
    uint64_t order_seen
    uint64_t fence_order_seen
    # per API key: first version with request header 2; 32767: none; -1: unknown key
    int16_t first_flexible[API_KEYS]
    uint64_t now_ns
    Told *told
    uint32_t told_count
    uint32_t told_room
    uint64_t answers_waiting    # answers that this turn found in the rings
    uint64_t clock_ns           # now_ns, or later: when the last answer was written
    FileTable files
    uint64_t next_files_look_ns
    Event *late                 # answers that came after their connection was closed
    uint32_t late_count
    Event *closed               # connections closed since Python looked; has room for all there can be
    uint32_t closed_count
    # channels in CHANNEL_OPENING since Python's last call; twice, if a place was reused meanwhile
    uint32_t *opening
    uint32_t opening_count
    uint32_t unopened_count     # the first of `opening` that found no room for their files when Python looked


cdef class ProcessorTurn:
    cdef ChannelTurn *t
    cdef object memory
    cdef readonly Sessions sessions
    cdef readonly Meters meters
    cdef list keep
    cdef dict rings
    cdef dict logs
    cdef uint64_t order_now
    cdef uint64_t fence_order_now
    cdef int _turns(self, int timeout_ms, uint64_t longest_ns) except -1
    cdef _reported(self, Channel *c)
