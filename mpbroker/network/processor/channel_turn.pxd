"""The state of a processor's connections that all phases of the turn share. Each part has a struct in it."""
from libc.stdint cimport int16_t, uint32_t, uint64_t

from mpbroker.ipc.session cimport SessionEntry
from mpbroker.network.processor.acceptors cimport Acceptors
from mpbroker.network.processor.activity cimport Activity
from mpbroker.network.processor.apis cimport API_KEYS
from mpbroker.network.processor.channel cimport Channel
from mpbroker.network.processor.files cimport FileTable
from mpbroker.network.processor.lists cimport Lists
from mpbroker.network.processor.memory cimport Memory
from mpbroker.network.processor.metering cimport Metering
from mpbroker.network.processor.muting cimport Mutes
from mpbroker.network.processor.peers cimport Peers
from mpbroker.network.processor.queue cimport Queue
from mpbroker.network.processor.reports cimport Reports
from mpbroker.network.processor.window_entries cimport Window
from shm.counters cimport CountersRef
from shm.doorbell cimport BellRef

cdef struct ChannelTurn:
    uint32_t process            # process index of this processor
    int epoll_fd
    int poll_errno              # errno of the last epoll_wait, if that failed
    BellRef bell
    CountersRef *counters
    uint64_t now_ns
    uint32_t found              # events of the last turn, or 1 if something else was to do
    bint stopping
    const uint64_t *leading     # the leading word (mpbroker.ipc.leading); NULL: in the control plane
    uint64_t closed_for_ns      # its value for which all channels were closed; LEADS_ALWAYS: it leads
    Channel *channels
    SessionEntry *sessions      # by channel
    uint32_t channel_places
    uint32_t channels_used      # places from here on were never used: they are zero, and take no memory
    uint32_t open_count
    uint64_t next_connection
    uint32_t next_request
    uint32_t frame_bytes_max
    # per API key: first version with request header 2; 32767: none; -1: unknown key
    int16_t first_flexible[API_KEYS]
    Acceptors acceptors
    Activity activity
    Lists lists
    Memory memory
    Metering metering
    Mutes mutes
    Queue queue
    Reports reports
    Window window
    # The large ones.
    Peers peers
    FileTable files

cdef ChannelTurn *empty_turn() except NULL
cdef allocate_places(ChannelTurn *t, uint32_t channel_places)
cdef void connect_parts(ChannelTurn *t) noexcept
cdef void release_turn(ChannelTurn *t) noexcept nogil
