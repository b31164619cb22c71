"""An acceptor's native turn: wait, accept, and hand connections to processors round robin, without the GIL.

Python decides which connections are admitted. It allows the turn a number of connections for each listener
(`ConnectionQuotas.unasked`). The turn reports a connection to Python at most TOLD_MS after accepting it, and
Python then allows more. Python accepts the connections above that number, and handles every error.
"""
from libc.errno cimport (
    EAGAIN, ECONNREFUSED, ECONNRESET, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOTCONN, EPIPE, errno,
)
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.unistd cimport close

import os

from mpbroker.ipc.connections cimport (
    ADDRESS_BYTES, Ledger, LedgerRef, ledger_hand, ledger_outstanding, ledger_take_back,
)
from mpbroker.network.handover cimport Handover, handover_send
from shm.atomics cimport load_acquire, store_relaxed
from shm.counters cimport CounterPage, CountersRef, heartbeat, monotonic_ns
from shm.doorbell cimport BellRef, Doorbell, bell_arm, bell_disarm, bell_drain

from mpbroker.ipc import connections
from mpbroker.ipc.listeners import COUNTS_BYTES, ListenerCount
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpbroker.ipc.topology import SharedMemory

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)

cdef extern from *:
    """
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <string.h>
    #include <sys/socket.h>

    /* Accept a connection and make it non-blocking. Store its client's address in the form of
       handover.packed_address. Return the descriptor, or -1 with errno. */
    static int accept_connection(int listening, unsigned char *address, int *length)
    {
        struct sockaddr_storage at;
        socklen_t room = sizeof at;
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&at;
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&at;
        int fd = accept4(listening, (struct sockaddr *)&at, &room, SOCK_NONBLOCK | SOCK_CLOEXEC);
        *length = 0;
        if (fd < 0)
            return -1;
        if (at.ss_family == AF_INET) {
            *length = 4;
            memcpy(address, &v4->sin_addr, 4);
        } else if (at.ss_family == AF_INET6) {
            *length = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? 4 : 16;
            memcpy(address, v6->sin6_addr.s6_addr + 16 - *length, *length);
        }
        return fd;
    }

    /* Set a connection's socket options. Return 0, or -1 with errno if the connection has ended already. */
    static int configure_connection(int fd, int send_buffer_bytes)
    {
        int on = 1;
        if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)
            || setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on))
            return -1;
        if (send_buffer_bytes == -1)
            return 0;
        return setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes);
    }
    """
    int ETOOMANYREFS
    int accept_connection(int listening, uint8_t *address, int *length) nogil
    int configure_connection(int fd, int send_buffer_bytes) nogil

cdef enum:
    EVENTS_MOST = 64
    SERVED_MOST = 256           # mpbroker.config.listeners.MAX_LISTENERS
    PROCESSORS_MOST = 32
    WORDS_MOST = 4
    TOLD_MOST = 1024            # connections handed over before the turn returns to Python
    TOLD_MS = 100
    NS_PER_MS = 1000000
    ACCEPTS_PER_WAKEUP = 256

cdef struct Served:
    int fd
    int number
    bint is_unix                # a Unix-domain socket: its connections have no options and no address
    uint64_t allowed            # connections that may be let in without asking Python
    uint64_t *accepted          # its ListenerCount.ACCEPTED

cdef struct Processor:
    int role
    int channel                 # the acceptor's end of the pair
    uint64_t *life              # its word of `roles`; 0: it is dead
    LedgerRef ledger

cdef struct Told:
    int role
    int listener
    uint64_t ticket
    int length
    uint8_t address[ADDRESS_BYTES]

cdef struct AcceptTurn:
    int epoll_fd
    int send_buffer_bytes
    CountersRef counters
    BellRef bell
    Served served[SERVED_MOST]
    int served_count
    Processor processors[PROCESSORS_MOST]
    int processor_count
    uint32_t next_processor
    uint64_t outstanding_most
    # words whose change ends the turn, and what Python has seen of them
    uint64_t *words[WORDS_MOST]
    uint64_t seen[WORDS_MOST]
    int word_count
    Told told[TOLD_MOST]
    int told_count
    uint64_t tell_at_ns         # when Python must get them
    int ready[EVENTS_MOST]      # descriptors that Python must serve
    int ready_count
    bint is_rung
    int unsent_fd               # a connection that could not be handed over; -1: none
    int unsent_listener
    int lost_listener           # a connection on it was lost before it was accepted; -1: none
    int lost_errno

cdef bint is_told_to_look(AcceptTurn *t) noexcept nogil:
    cdef int i
    for i in range(t.word_count):
        if load_acquire(t.words[i]) != t.seen[i]:
            return True
    return False

cdef Processor *processor_with_room(AcceptTurn *t) noexcept nogil:
    """Return the next live processor that has room; NULL if none has."""
    cdef Processor *p
    cdef int i
    for i in range(t.processor_count):
        p = &t.processors[(t.next_processor + i) % t.processor_count]
        if load_acquire(p.life) and ledger_outstanding(&p.ledger) < t.outstanding_most:
            return p
    return NULL

cdef inline void pass_turn(AcceptTurn *t, const Processor *p) noexcept nogil:
    """Let the next search for a processor begin after `p`."""
    t.next_processor = <uint32_t>((p - t.processors + 1) % t.processor_count)

cdef bint is_no_room(int error) noexcept nogil:
    """Return whether a hand-over failed for an expected reason, which is not raised: the processor's queue is
    full, memory or sockets in flight are at a limit, or supervisor and processor are dead.
    """
    return error in (
        EAGAIN, ETOOMANYREFS, ENOBUFS, ENOMEM, EPIPE, ECONNRESET, ECONNREFUSED, ENOTCONN)

cdef uint64_t send_to(
    Processor *p, int fd, int listener, const uint8_t *address, int length
) noexcept nogil:
    """Hand a connection to a processor. Return its ticket, or 0 with errno if it was not sent."""
    cdef Handover message
    memset(&message, 0, sizeof(message))
    message.ticket = ledger_hand(&p.ledger, listener, address, length)
    message.listener = <uint16_t>listener
    message.address_bytes = <uint8_t>length
    memcpy(message.address, address, length)
    if handover_send(p.channel, &message, sizeof(message), fd) < 0:
        ledger_take_back(&p.ledger)
        return 0
    return message.ticket

cdef void note_told(
    AcceptTurn *t, Processor *p, uint64_t ticket, int listener, const uint8_t *address, int length
) noexcept nogil:
    cdef Told *told = &t.told[t.told_count]
    if t.told_count == 0:
        t.tell_at_ns = monotonic_ns() + TOLD_MS * NS_PER_MS
    told.role, told.listener, told.ticket, told.length = p.role, listener, ticket, length
    memcpy(told.address, address, length)
    t.told_count += 1

cdef bint accept_all(AcceptTurn *t, Served *s) noexcept nogil:
    """Accept the connections in the listener's backlog. Return False if Python has to accept the rest."""
    cdef uint8_t address[ADDRESS_BYTES]
    cdef int _, fd, length
    cdef uint64_t ticket
    cdef Processor *p
    for _ in range(ACCEPTS_PER_WAKEUP):
        if t.told_count == TOLD_MOST:
            return True
        p = processor_with_room(t) if s.allowed else NULL
        if p == NULL:
            return False
        fd = accept_connection(s.fd, address, &length)
        if fd < 0:
            if errno == EAGAIN:
                return True
            if errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                return False        # it is still in the backlog
            if errno != EINTR:
                t.lost_listener, t.lost_errno = s.number, errno
                return True
            continue
        ticket = 0
        if s.is_unix or configure_connection(fd, t.send_buffer_bytes) == 0:
            ticket = send_to(p, fd, s.number, address, length)
        if ticket == 0:
            t.unsent_listener, t.unsent_fd = s.number, fd
            return True
        pass_turn(t, p)
        close(fd)
        note_told(t, p, ticket, s.number, address, length)
        s.allowed -= 1
        store_relaxed(s.accepted, s.accepted[0] + 1)
    return True

cdef Served *served_by(AcceptTurn *t, int fd) noexcept nogil:
    cdef int i
    for i in range(t.served_count):
        if t.served[i].fd == fd:
            return &t.served[i]
    return NULL

cdef void take_events(AcceptTurn *t, epoll_event *events, int count, bint quiet) noexcept nogil:
    """Accept on ready listeners if `quiet` (no `t.words` have changed). Note events for Python to handle."""
    cdef int i
    cdef Served *s
    for i in range(count):
        if events[i].data.fd == t.bell.fd:
            bell_drain(&t.bell)
            t.is_rung = True
            continue
        s = served_by(t, events[i].data.fd)
        if s == NULL or not quiet or t.unsent_fd >= 0 or t.lost_listener >= 0 or not accept_all(t, s):
            t.ready[t.ready_count] = events[i].data.fd
            t.ready_count += 1

cdef bint must_tell(AcceptTurn *t, uint64_t now_ns) noexcept nogil:
    """Return whether the turn must return to Python."""
    if t.ready_count or t.is_rung or t.unsent_fd >= 0 or t.lost_listener >= 0:
        return True
    return t.told_count == TOLD_MOST or (t.told_count != 0 and now_ns >= t.tell_at_ns)

cdef int run_turns(AcceptTurn *t, int timeout_ms) noexcept nogil:
    """Wait and accept until Python must act or the time is over. Return 0, or the errno of epoll_wait."""
    cdef epoll_event events[EVENTS_MOST]
    cdef uint64_t now_ns = monotonic_ns(), until_ns = now_ns + <uint64_t>timeout_ms * NS_PER_MS, end_ns
    cdef bint quiet
    cdef int count
    t.ready_count = t.is_rung = 0
    while True:
        end_ns = t.tell_at_ns if t.told_count and t.tell_at_ns < until_ns else until_ns
        bell_arm(&t.bell)
        quiet = not is_told_to_look(t)
        count = 0
        if quiet and now_ns < end_ns:
            count = <int>((end_ns - now_ns + NS_PER_MS - 1) // NS_PER_MS)
        count = epoll_wait(t.epoll_fd, events, EVENTS_MOST, count)
        bell_disarm(&t.bell)
        if count < 0:
            return errno if errno != EINTR else 0       # Python's signal handlers come first
        now_ns = monotonic_ns()
        heartbeat(&t.counters, now_ns)
        # Check again: a client that knows of a limit and then connects must meet it.
        quiet = quiet and not is_told_to_look(t)
        take_events(t, events, count, quiet)
        if not quiet or must_tell(t, now_ns) or now_ns >= until_ns:
            return 0


cdef class AcceptorTurn:
    """The turn of the acceptor with process index `process`. `epoll_fd` watches its doorbell, its orders and
    its listeners. When one of `words` changes (aligned words of shared memory), the turn returns to Python.
    """
    cdef AcceptTurn t
    cdef object memory
    cdef list keep
    cdef dict ledgers
    cdef unsigned char[::1] roles

    def __cinit__(self, *args, **named):
        self.t.unsent_fd = self.t.lost_listener = -1

    def __dealloc__(self):
        if self.t.unsent_fd >= 0:
            close(self.t.unsent_fd)

    def __init__(
        self, memory: SharedMemory, int process, int epoll_fd, words: list[memoryview], int send_buffer_bytes,
    ):
        cdef CounterPage counters = memory.counters(process)
        cdef Doorbell bell = memory.doorbell(process)
        cdef unsigned char[::1] word
        if len(words) > WORDS_MOST:
            raise ValueError(f"{len(words)} words: at most {WORDS_MOST} are watched")
        self.memory = memory
        self.roles = memory.private.block("roles")
        self.keep = [counters, bell]
        self.ledgers = {}
        self.t.epoll_fd, self.t.send_buffer_bytes = epoll_fd, send_buffer_bytes
        self.t.counters, self.t.bell = counters.ref, bell.ref
        self.t.outstanding_most = connections.OUTSTANDING_MAX
        for word in words:
            self.keep.append(word)
            self.t.words[self.t.word_count] = <uint64_t *>(<size_t>&word[0])
            self.t.word_count += 1

    def look_at_words(self) -> None:
        """Note the present values of the words. Call it before reading the state that they guard, so that a
        later change ends the turn.
        """
        cdef int i
        for i in range(self.t.word_count):
            self.t.seen[i] = load_acquire(self.t.words[i])

    def serve(self, int timeout_ms) -> list[int]:
        """Accept connections and hand them over until Python must act, for `timeout_ms` at most. Return the
        ready descriptors that Python must serve. Raise OSError if epoll_wait fails.
        """
        cdef int error
        with nogil:
            error = run_turns(&self.t, timeout_ms)
        if error:
            raise OSError(error, os.strerror(error))
        return [self.t.ready[i] for i in range(self.t.ready_count)]

    # ---- settings from Python

    def set_processors(self, channels: list[tuple[int, int]]) -> None:
        """Hand connections to these processors from now on; each is (role, descriptor of its socket pair)."""
        cdef Processor *p
        cdef Ledger ledger
        if len(channels) > PROCESSORS_MOST:
            raise ValueError(f"{len(channels)} processors: at most {PROCESSORS_MOST} are served")
        self.t.processor_count = 0
        for role, channel in channels:
            if role not in self.ledgers:
                self.ledgers[role] = self.memory.connections(role)
            ledger = self.ledgers[role]
            p = &self.t.processors[self.t.processor_count]
            p.role, p.channel, p.ledger = role, channel, ledger.ref
            p.life = <uint64_t *>(<size_t>&self.roles[<int>role * 8])
            self.t.processor_count += 1

    def add_listener(self, int fd, int number, bint is_unix) -> None:
        """Register the listening socket `fd` of a listener. The turn accepts nothing on it before `allow`."""
        cdef unsigned char[::1] listeners = self.memory.public.block("listeners")
        cdef Served *s
        if self.t.served_count == SERVED_MOST:
            raise ValueError(f"an acceptor serves at most {SERVED_MOST} listeners")
        s = &self.t.served[self.t.served_count]
        self.keep.append(listeners)
        s.fd, s.number, s.is_unix, s.allowed = fd, number, is_unix, 0
        s.accepted = <uint64_t *>(
            <size_t>&listeners[number * <int>COUNTS_BYTES + 8 * <int>ListenerCount.ACCEPTED])
        self.t.served_count += 1

    def remove_listener(self, int fd) -> None:
        cdef Served *s = served_by(&self.t, fd)
        if s != NULL:
            self.t.served_count -= 1
            s[0] = self.t.served[self.t.served_count]

    def allow(self, int fd, uint64_t count) -> None:
        """Let the turn accept up to `count` connections of a listener from now on without asking Python."""
        cdef Served *s = served_by(&self.t, fd)
        if s != NULL:
            s.allowed = count

    def configure(self, int send_buffer_bytes) -> None:
        """Set socket.send.buffer.bytes for new connections; -1 leaves the kernel's default."""
        self.t.send_buffer_bytes = send_buffer_bytes

    def hand_over(self, int fd, int listener, const unsigned char[::1] address) -> tuple[int, int] | None:
        """Hand a connection to the next processor that has room.

        Return (role, ticket), or None if no processor has room. Raise OSError if sending fails for good.
        """
        cdef const uint8_t *bytes = &address[0] if address.shape[0] else <const uint8_t *>b""
        cdef Processor *p
        cdef uint64_t ticket
        cdef int _
        for _ in range(self.t.processor_count):
            p = processor_with_room(&self.t)
            if p == NULL:
                return None
            ticket = send_to(p, fd, listener, bytes, <int>address.shape[0])
            pass_turn(&self.t, p)
            if ticket:
                return p.role, ticket
            if not is_no_room(errno):
                raise OSError(errno, os.strerror(errno))
        return None

    # ---- what Python hears

    def handed(self) -> list[tuple[int, int, int, bytes]]:
        """Return (role, ticket, listener, address) of the connections handed over since the last call."""
        cdef Told *told
        cdef int i
        found = []
        for i in range(self.t.told_count):
            told = &self.t.told[i]
            found.append((told.role, told.ticket, told.listener, (<char *>told.address)[:told.length]))
        self.t.told_count = 0
        return found

    def unsent(self) -> tuple[int, int] | None:
        """Return (listener, descriptor) of a connection that was accepted and not handed over, or None. The
        caller has to close the descriptor.
        """
        if self.t.unsent_fd < 0:
            return None
        found = self.t.unsent_listener, self.t.unsent_fd
        self.t.unsent_fd = -1
        return found

    def lost(self) -> tuple[int, int] | None:
        """Return (listener, errno) of a connection that ended before it could be accepted, or None."""
        if self.t.lost_listener < 0:
            return None
        found = self.t.lost_listener, self.t.lost_errno
        self.t.lost_listener = -1
        return found
