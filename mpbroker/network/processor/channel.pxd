"""A connection as the processor's native turn keeps it. Private memory of one processor; nothing of this is shared."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mpbroker.ipc.slots cimport ReplySlot

cpdef enum ChannelState:
    CHANNEL_FREE = 0        # no connection
    CHANNEL_READING = 1     # between answers: a frame may be partly here
    CHANNEL_WAITING = 2     # one request is with a handler or in the FIFO; nothing is read (Kafka: muted)
    CHANNEL_SENDING = 3     # the answer is partly written
    CHANNEL_OPENING = 4     # the answer needs a segment file that is not open yet
    CHANNEL_THROTTLED = 6   # answered; nothing is read until the throttle has ended
    CHANNEL_CLOSED = 5      # the socket is closed, but a handler or the log process still has the request's block

cpdef enum CloseReason:
    CLOSED_BY_PEER = 1
    CLOSED_RESET = 2            # a system call on the socket failed
    CLOSED_FRAME_SIZE = 3       # negative or larger than socket.request.max.bytes
    CLOSED_HEADER = 4           # the request header cannot be parsed
    CLOSED_UNKNOWN_API = 5
    CLOSED_BY_HANDLER = 6       # the handler answered CLOSE
    CLOSED_IDLE = 7
    CLOSED_ROLE_DIED = 8        # what it waited for was lost with a process
    CLOSED_STOPPING = 9
    CLOSED_NO_FILE = 10         # a segment of its answer could not be opened, again and again, or not be read
    CLOSED_ILLEGAL_STATE = 11   # an answer came that cannot come now (mute.py)
    CLOSED_STALLED = 12         # memory was short, and what it began made no progress
    CLOSED_EXCESS = 13          # made room for another connection (max.connections)
    CLOSED_LISTENER = 14        # its listener was removed
    CLOSED_FAILED = 15          # an exception while it was looked after
    CLOSED_TLS = 16             # TLS failed, in the handshake or later
    CLOSED_SASL_FRAME_SIZE = 17 # negative or larger than sasl.server.max.receive.size
    CLOSED_AUTHENTICATION = 18  # SASL failed, and its answer was given
    CLOSED_SESSION_EXPIRED = 19 # a request came after the end of the authentication
    CLOSED_NO_MEMORY = 20       # a parked request has to be asked anew, and its frame was not kept
    CLOSED_MANY_FILES = 21      # its answer needs more segment files than can be open

cdef struct Channel:
    int fd
    uint8_t state
    uint8_t readable            # more may be in the socket's buffer (edge-triggered: we must remember)
    uint8_t ended               # the client has sent its last byte; no further edge tells so
    uint8_t parked
    uint8_t deferred            # is in the list of channels to look at again
    uint8_t held                # is in the list of channels that wait for room in the queue
    uint8_t starved             # is in the list of channels that wait for memory
    uint8_t unreported          # what Python has not been told of it: the place and its session stay until then
    uint8_t mute                # MuteState
    uint8_t secure              # NEGOTIATING or MOVED (tls_sasl.pxi); 0: its bytes are plain
    uint8_t marked              # is in the list of channels that Python has to look at
    uint8_t owned               # the descriptor is Python's to close
    uint64_t expires_ns         # from then on the client must authenticate anew; 0: never
    uint64_t renewed_ns         # when it last began to
    uint32_t timer              # its place in the heap of throttled channels; 0: none
    uint64_t throttled_until_ns
    uint8_t throttled_by        # ThrottledBy
    uint16_t listener
    int16_t client              # its software, in meters_clients; -1: not counted
    uint16_t handler            # handler number that has the request
    uint32_t index
    uint32_t request
    uint64_t connection
    uint64_t last_active_ns
    uint64_t moved_bytes        # received and sent, since it was opened
    uint64_t marked_bytes       # of these, when its progress was last looked at
    uint64_t marked_ns          # and when that was; 0: not since it began what it does now
    # the frame being received, or the request that is outstanding
    uint64_t block
    uint64_t asked_bytes        # what the block was allocated for
    uint8_t *kept               # instead of a block: the frame of a request that is parked, or was
    uint32_t received           # bytes in the block
    uint32_t needed             # whole frame with its size field; 0: not known yet
    uint32_t body
    int16_t api_key
    int16_t api_version
    int32_t correlation
    uint32_t expected           # guess for the next frame: the last one's size, within bounds
    uint64_t received_ns
    uint64_t dequeued_ns        # when its answer was taken from the ring
    uint64_t network_ns         # what was spent on it, as far as no handler has been told (metering.pxi)
    uint64_t ring_position      # of the request in the handler's ring
    # bytes behind that frame: what is pipelined stays in a block of its own, and an offset moves on in it
    uint64_t stash
    uint64_t stash_asked_bytes
    uint32_t stash_at
    uint32_t stash_received
    # the answer being written
    uint32_t part               # index of the part being written
    uint64_t part_sent          # bytes of it that are written
    uint32_t open_tries
    uint32_t deaths             # of handlers that had taken the request
    ReplySlot answer
