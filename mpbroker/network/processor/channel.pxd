"""A channel: the state of a connection in the processor's native turn, in private memory of the processor."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.ipc.slots cimport ReplySlot

cpdef enum ChannelState:
    CHANNEL_FREE = 0        # no connection
    CHANNEL_READING = 1     # a frame may be partly received; requests of the window may be under way
    # one request is with a handler or in the FIFO, and the window is empty; nothing is read (Kafka: muted)
    CHANNEL_WAITING = 2
    CHANNEL_SENDING = 3     # the answer is partly written
    CHANNEL_OPENING = 4     # the answer needs a segment file that is not open yet
    CHANNEL_THROTTLED = 6   # nothing is read until the throttle has ended
    CHANNEL_CLOSED = 5      # the socket is closed, but another process still has a request's block

cpdef enum CloseReason:
    CLOSED_BY_PEER = 1
    CLOSED_RESET = 2            # a system call on the socket failed
    CLOSED_FRAME_SIZE = 3       # negative or larger than socket.request.max.bytes
    CLOSED_HEADER = 4           # the request header cannot be parsed
    CLOSED_UNKNOWN_API = 5
    CLOSED_BY_HANDLER = 6       # the handler answered CLOSE
    CLOSED_IDLE = 7
    CLOSED_ROLE_DIED = 8        # the process that had its request died
    CLOSED_STOPPING = 9
    CLOSED_NO_FILE = 10         # a segment of its answer could not be read, or not be opened after some tries
    CLOSED_ILLEGAL_STATE = 11   # an answer came that cannot come now (mute.py)
    CLOSED_STALLED = 12         # it made no progress while others waited for memory
    CLOSED_EXCESS = 13          # closed to make room for another connection (max.connections)
    CLOSED_LISTENER = 14        # its listener was removed
    CLOSED_FAILED = 15          # Python raised an exception while serving it
    CLOSED_TLS = 16             # TLS failed, in the handshake or later
    CLOSED_SASL_FRAME_SIZE = 17  # negative or larger than sasl.server.max.receive.size
    CLOSED_AUTHENTICATION = 18  # SASL failed; the answer with the error was sent
    CLOSED_SESSION_EXPIRED = 19  # a request came after the end of the authentication
    CLOSED_NO_MEMORY = 20       # a parked request had to be asked again, and its frame was not kept
    CLOSED_MANY_FILES = 21      # its answer needs more segment files than can be open
    CLOSED_LOGIN_TIMEOUT = 22   # the client was not authenticated in time
    CLOSED_LOGIN_EXCESS = 23    # closed in favour of a newer one that is not authenticated either
    CLOSED_LEASE = 24           # the broker leads no longer: answers decided before must not leave now

cdef enum:
    WINDOW_MOST = 32            # the largest max.in.flight.requests.per.connection
    NO_HANDLER = 0xFFFF
    # Of `secure`.
    NEGOTIATING = 1
    MOVED = 2

# A request, from its first bytes until its answer is written.
cdef struct Request:
    uint32_t number             # the processor's running number; given out again, a request gets another
    uint16_t handler            # number of the handler that has it
    uint8_t parked
    uint64_t block
    uint64_t asked_bytes        # what the block was allocated for
    # instead of a block: the frame of a request that is parked, or was
    uint8_t *kept
    uint32_t needed             # whole frame with its size field; 0: not known yet
    uint32_t body
    int16_t api_key
    int16_t api_version
    int32_t correlation
    uint64_t received_ns
    uint64_t dequeued_ns        # when its answer was taken from the ring
    uint64_t ring_position      # position of the request in the handler's ring
    uint32_t open_tries
    uint32_t deaths             # deaths of handlers that had taken the request
    ReplySlot answer

# A request of a window: meanwhile the channel reads the next one (window_entries.pxd).
cdef struct WindowEntry:
    Request request
    uint32_t channel
    uint8_t answered            # `request.answer` is its answer, or it was given up with its connection
    uint8_t waiting             # it waits until its channel's handler has answered those before it
    uint32_t sent               # bytes of the answer that are written

cdef struct Channel:
    int fd
    uint8_t state
    uint8_t readable            # the socket may have more bytes: an edge reports them only once
    uint8_t ended               # the client has sent its last byte: no further edge reports that
    uint8_t deferred            # is in the list of channels of the next turn
    uint8_t held                # is in the list of channels that wait for room in the queue
    uint8_t starved             # is in the list of channels that wait for memory
    uint8_t unreported          # events that Python has not read yet: place and session stay until then
    uint8_t mute                # MuteState
    uint8_t secure              # NEGOTIATING or MOVED (turn_tls.pyx); 0: plain bytes
    uint8_t marked              # is in the list of channels that Python must serve
    uint8_t owned               # Python closes the descriptor
    uint64_t expires_ns         # when the client must authenticate again; 0: never
    uint64_t renewed_ns         # when the client last began to authenticate again
    uint32_t timer              # its place in the heap of throttled channels; 0: none
    uint64_t throttled_until_ns
    uint8_t throttled_by        # ThrottledBy
    uint16_t listener
    int16_t client              # index of its software in meters_clients; -1: not counted
    uint32_t index
    uint64_t connection
    uint64_t last_active_ns
    uint64_t moved_bytes        # received and sent since it was opened
    uint64_t checked_bytes       # `moved_bytes` when progress was last checked
    # when progress was last checked; 0: not since the present request or answer began
    uint64_t checked_ns
    # the frame being received, or the one request that is outstanding
    Request request
    uint32_t received           # bytes in its block
    uint8_t barred              # it is whole, and waits until the window is empty
    uint32_t expected           # guess of the next frame's size: the last one's, within bounds
    uint64_t network_ns         # time spent on the request, not reported to a handler yet (metering.pyx)
    # bytes after that frame: pipelined frames stay in a block of their own, and `stash_at` moves on in it
    uint64_t stash
    uint64_t stash_asked_bytes
    uint32_t stash_at
    uint32_t stash_received
    # the answer being written
    uint32_t part               # index of the part being written
    uint64_t part_sent          # bytes of that part that are written
    # the window: requests under way that the next one need not wait for, the oldest first, in a circle
    uint32_t window[WINDOW_MOST]
    uint8_t window_first
    uint8_t window_count
    uint8_t window_owed         # of these, requests that are not answered yet
    uint8_t window_closes       # a handler has closed the connection: nothing after that is begun
    uint8_t window_waiting      # of these, requests that wait for the channel's handler
