"""The handler's turn: take all waiting descriptors, serve common requests natively, hand back the rest.

    1. sleep      arm the bell, check every ring and watched word, sleep for at most the time given
    2. take       copy some of a ring's slots and advance its head before acting on them, until the ring is
                  empty or the turn has taken 10 ms
    3. act        common Produce requests become jobs (produce.pyx), hot fetches are answered (fetch.pyx),
                  short commits of offsets and heartbeats go to the coordinator (forwarded.pxd); all else is
                  kept for Python, marked as heavy if its batches unpack to many bytes. A broker that does
                  not lead leaves everything to Python
    4. publish    each ring once, and ring its bell once

HandlerTurn is the only producer of the rings to the log workers: Python's own jobs go through `push_job`.
A job for several workers is sent to each of them and answered here when all have returned it
(shared_jobs.pxd). Between turns, Python's outboxes produce into the turn's rings to the processors, so
a turn publishes all slots that it has staged before it ends.

This handler's word of `heavy` is set before a ring's head moves past a heavy request, so a processor that
sees the request taken also sees the handler busy. The word is cleared when no heavy request is left.

A commit that is left to Python must be forwarded before later commits. So the turn forwards nothing after
it until Python has taken the slots that are left to Python (`left_to_forward`).
(Kafka: KafkaRequestHandler.run and the quick half of KafkaApis.handleProduceRequest.)
"""
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from mpbroker.handlers.hot_path.fetch cimport FETCH_KEY, FetchCounts, try_fetch
from mpbroker.handlers.hot_path.forwarded cimport (
    APIS_MAX, FORWARDED_MAX, ForwardedEntry, ForwardedRef, forward_answer, forward_begin, forward_end,
    forward_entry, is_forwardable,
)
from mpbroker.handlers.hot_path.log_rings cimport LogPeer, SlotList, append, drain_to_log, publish_log, to_log
from mpbroker.handlers.hot_path.metering cimport count_fetch, count_produce
from mpbroker.handlers.hot_path.produce cimport set_throttle, try_produce
from mpbroker.handlers.hot_path.session_table cimport SessionTable
from mpbroker.handlers.hot_path.shared_jobs cimport (
    SharedJob, SharedJobs, shared_answer, shared_begin, shared_end, shared_free, shared_number,
    shared_returned,
)
from mpbroker.handlers.hot_path.topic_table cimport TopicTable
from mpbroker.handlers.hot_path.wire cimport CLIENT_ID_AT
from mpbroker.ipc.counters cimport (
    COUNT_CALLS_DELAYED, COUNT_FETCHES, COUNT_FETCHES_FAST, COUNT_FETCHES_INCREMENTAL, COUNT_IDLE_NS,
    COUNT_PRODUCE_FAST, COUNT_PRODUCE_SLOW, COUNT_REQUESTS, COUNT_WAKEUPS, REQUESTS_PER_TURN,
)
from mpbroker.ipc.leading cimport is_past
from mpbroker.ipc.loop cimport NATIVE_AT_MOST_NS
from mpbroker.ipc.meters cimport Meters, QuotaKind, QuotaWord, add_quota, note_pause, quota_of_all
from mpbroker.ipc.session cimport SessionEntry, Sessions
from mpbroker.ipc.jobs cimport PRODUCE_KEY, is_shared
from mpbroker.ipc.slots cimport (
    AGAIN, ANSWER, HEAVY, NETWORK_UNIT_NS, PRODUCE, PRODUCE_BACK, PRODUCED, REQUEST, RETURN,
    THROTTLED_BY_PRODUCE, THROTTLED_BY_REQUEST, CallSlot, JobHeader, ProduceSlot, ReplySlot, RequestSlot,
    ReturnSlot,
)
from mpbroker.quotas.clients cimport Client, Clients, charge, client_of
from mpbroker.records.unpack cimport BatchUnpacker
from mpbroker.handlers.hot_path.fetch_positions cimport FetchPositions
from shm.arena cimport Arena
from shm.atomics cimport load_acquire, load_relaxed, store_relaxed
from shm.counters cimport (
    CounterPage, CountersRef, counter_add, heartbeat, histogram_record, monotonic_ns,
)
from shm.doorbell cimport BellRef, Doorbell, bell_arm, bell_disarm, bell_ring, bell_sleep
from shm.table cimport SlotTable
from shm.ring cimport (
    Ring, RingRef, Slot, ring_advance, ring_peek, ring_publish, ring_room, ring_stage, ring_waiting,
    ring_want_space,
)
from shm.zeroed cimport zeroed

from typing import NamedTuple, TYPE_CHECKING

from mpbroker.ipc import topology
from mpbroker.ipc.topology import (
    COORDINATOR, FIRST_HANDLER, TIER, is_log_worker, is_processor, log_worker, log_worker_number,
    processors_of,
)
from mpbroker.protocol import headers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from mpbroker.ipc.topology import SharedMemory

cdef extern from *:
    """
    #include <time.h>
    static inline long long wall_clock_ms(void) {
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
        }
    """
    int64_t wall_clock_ms() nogil

cdef enum:
    NO_WORKER = -1
    LOGS_MAX = 7                # mpbroker.ipc.topology.MAX_LOG_WORKERS, checked at import
    PEERS_MAX = 25             # processors, log workers, coordinator, tier
    WATCHED_MAX = 16
    # Requests taken at once: each may unpack UNPACK_ROOM_BYTES, some ms of work.
    TAKEN_AT_ONCE = 8
    # A turn takes nothing more after this time: it ends 50 ms after its start at the latest.
    TURN_AT_MOST_NS = 10 * 1000 * 1000
    # Read the clock again after this many bytes of batches: a few microseconds of work.
    CLOCK_EVERY_BYTES = 16384
    SIZE_FIELD_BYTES = 4        # at the start of a frame; a request's size does not count it
    CHANNEL_PLACES = 32768      # mpbroker.ipc.topology.CHANNELS_PER_PROCESSOR, checked at import

assert CHANNEL_PLACES == topology.CHANNELS_PER_PROCESSOR and LOGS_MAX == topology.MAX_LOG_WORKERS
assert CLIENT_ID_AT == headers.CLIENT_ID_AT

# Values of `owner` and `processor` other than the index of one processor.
EVERYTHING, ANY_PROCESSOR = -1, -2


class Forwarded(NamedTuple):
    """A request that the turn has forwarded, and that Python takes over.

    `request` is the request's descriptor; `block` is the block of the call in the handler's arena.
    `is_dropped`: no response is needed.
    """

    request: bytes
    number: int
    block: int
    generation: int
    size: int
    taken_ns: int
    passed_on_ns: int
    is_dropped: bool


cdef struct Peer:
    RingRef *inbox              # NULL: no such ring
    RingRef *outbox             # answers; calls if the peer is the coordinator; NULL: it is a log worker
    bint has_staged             # something is staged for the peer
    bint has_returns            # something is staged that need not wake the peer
    BellRef *bell
    uint8_t *arena
    SessionEntry *sessions
    uint16_t index
    int worker                  # number of the log worker; NO_WORKER if the peer is not one
    bint requests               # the peer is a processor
    # by channel of the processor: its produces that Python passes on, and one if Python refuses the channel;
    # later ones go to Python too
    uint8_t *slow_produces

cdef struct Watched:
    uint64_t *word
    uint64_t seen


cdef inline bint has_room(RingRef *ring) noexcept nogil:
    """Return True if `ring_stage` would succeed. Read the consumer's head only if the ring seems full."""
    return ring.staged - ring.head_seen < ring.size or ring_room(ring) != 0


cdef class HandlerTurn:
    """One handler's turn.

    `memory` is the SharedMemory of all processes, `answers` has the rings to other processes by their index:
    to processors, the coordinator and, if tiered storage is on, the tier.
    The caller fills `topics` and `fetch_positions` between turns.
    """

    cdef Peer peers[PEERS_MAX]
    cdef int peer_count
    cdef int first_peer         # with which the next turn begins
    cdef Watched watched[WATCHED_MAX]
    cdef int watched_count
    cdef LogPeer logs[LOGS_MAX]
    cdef int log_count
    cdef SharedJobs shared
    cdef ForwardedRef forwarded
    cdef Arena arena            # the handler's own; None as long as nothing is forwarded
    cdef Peer *coordinator
    cdef bint left_to_forward   # a request of this kind waits for Python
    cdef BellRef *bell
    cdef CountersRef *counters
    cdef uint64_t *heavy        # since when (ns) a heavy request is here; 0: none
    cdef bint heavy_for_python  # this turn hands a heavy request to Python
    cdef bint python_works      # Python has a heavy request from an earlier turn
    cdef SlotList slow          # slots for Python
    cdef SlotList unsent        # answers for Python to send: the processor's ring was full
    cdef uint64_t found         # requests of the last turn, and answers of the coordinator
    cdef uint64_t answer_count  # of the coordinator, in this turn
    cdef uint16_t index
    cdef public bint paused     # requests stay in their rings
    cdef public bint leaves_all  # True: every request goes to Python
    cdef const uint64_t *leading  # the leading word (mpbroker.ipc.leading)
    cdef bint leaves_these      # the requests taken now go to Python
    cdef public bint logs_requests  # True: Python describes every request, for the request log
    cdef public bint fetch_is_fast  # False: every Fetch goes to Python
    cdef public bint forwards   # the coordinator is there, and nothing of Python's waits for room in its ring
    cdef public int fetch_bytes_max
    cdef public int permissions_word  # number of the watched word that moves with permissions
    cdef readonly TopicTable topics
    cdef readonly BatchUnpacker unpacker
    cdef readonly Meters meters
    cdef readonly Clients clients
    cdef int64_t window_ms      # of quotas
    cdef readonly FetchPositions fetch_positions
    cdef readonly SessionTable fetch_sessions
    cdef SlotTable table
    cdef list keep
    cdef list sessions
    cdef list log_rings
    cdef list inboxes

    def __init__(
        self, int index, memory: SharedMemory, CounterPage counters, TopicTable topics,
        answers: dict[int, Ring],
    ):
        cdef Doorbell bell = memory.doorbell(index)
        cdef int number
        self.index, self.topics, self.meters = index, topics, memory.meters(index)
        self.clients, self.window_ms = Clients(memory.rates(index), self.meters), memory.sizes.quota_window_ms
        self.unpacker = BatchUnpacker()
        self.keep = [bell, counters]
        self.sessions, self.log_rings, self.inboxes = [], [], []
        self.bell, self.counters = &bell.ref, &counters.ref
        cdef unsigned char[::1] heavy = memory.private.block("heavy")
        self.heavy = <uint64_t *>&heavy[8 * (index - FIRST_HANDLER)]
        cdef unsigned char[::1] leading = memory.private.block("leading")
        self.keep += [heavy, leading]
        self.leading = <const uint64_t *>&leading[0]
        store_relaxed(self.heavy, 0)
        self.paused, self.fetch_is_fast = False, True
        self.fetch_bytes_max = 0x7fffffff
        self.fetch_positions = FetchPositions(memory.private.block("damaged"))
        self.fetch_sessions = SessionTable()
        self.table = memory.table()
        for number in range(memory.sizes.log_workers):
            self._add_log(memory, number)
        for peer in (*processors_of(index), *(log_worker(n) for n in range(self.log_count)), COORDINATOR):
            self._add_peer(memory, peer, answers.get(peer))
        if TIER in answers:
            self._add_peer(memory, TIER, answers[TIER])

    def __dealloc__(self):
        cdef int number
        for number in range(self.log_count):
            free(self.logs[number].waiting.slots)
        for number in range(self.peer_count):
            free(self.peers[number].slow_produces)
        free(self.slow.slots)
        free(self.unsent.slots)
        free(self.forwarded.entries)
        shared_free(&self.shared)

    cdef _add_log(self, memory, int number):
        cdef Ring ring = memory.ring(self.index, log_worker(number))
        cdef Doorbell bell = memory.doorbell(log_worker(number))
        self.keep.append(bell)
        self.log_rings.append(ring)
        self.logs[number].ring, self.logs[number].bell = &ring.ref, &bell.ref
        self.log_count = number + 1

    cdef _add_peer(self, memory, int index, Ring answers):
        if self.peer_count == PEERS_MAX:
            raise IndexError(f"{PEERS_MAX} processes talk to a handler, and there is one more: {index}")
        cdef Ring inbox = memory.ring(index, self.index)
        cdef Doorbell bell = memory.doorbell(index)
        cdef Arena arena = memory.arena(index)
        cdef Sessions sessions
        cdef Peer *peer = &self.peers[self.peer_count]
        self.peer_count += 1
        self.keep += [bell, arena, answers]
        self.inboxes.append(inbox)
        peer.inbox, peer.bell, peer.arena, peer.index = &inbox.ref, &bell.ref, arena.ref.base, index
        peer.requests = is_processor(index)
        peer.worker = log_worker_number(index) if is_log_worker(index) else NO_WORKER
        if peer.requests:
            sessions = memory.sessions(index)
            self.sessions.append(sessions)
            peer.sessions = sessions.entries
            peer.slow_produces = <uint8_t *>zeroed(CHANNEL_PLACES, 1)
            if peer.slow_produces == NULL:
                raise MemoryError("no memory for the order of produces")
        peer.outbox = &answers.ref if answers is not None else NULL
        if index == COORDINATOR:
            self.coordinator = peer

    def watch(self, unsigned char[::1] block, Py_ssize_t at) -> int:
        """Let a change of the 64-bit word at `block[at]` end the sleep; return the number for `changed`.

        Raises ValueError if the word is unaligned or outside the block, or WATCHED_MAX words are watched.
        """
        if self.watched_count == WATCHED_MAX or at + 8 > block.shape[0] or <size_t>&block[at] % 8:
            raise ValueError(f"cannot watch word {self.watched_count}, at {at} of {block.shape[0]} bytes")
        self.keep.append(block)
        self.watched[self.watched_count].word = <uint64_t *>&block[at]
        self.watched_count += 1
        return self.watched_count - 1

    def changed(self, int number) -> bool:
        """Return True if the watched word with this number has changed since the last call."""
        cdef Watched *watched = &self.watched[number]
        cdef uint64_t now = load_acquire(watched.word)
        if now == watched.seen:
            return False
        watched.seen = now
        return True

    def works(self, bint works) -> None:
        """Set whether Python still has a heavy request after this turn."""
        self.python_works = works
        if works != (load_relaxed(self.heavy) != 0):
            store_relaxed(self.heavy, monotonic_ns() if works else 0)

    @property
    def log_is_up(self) -> bool:
        """True if all log workers are up. Requests for a log worker that is down go to Python."""
        return self.topics.ref.down == 0

    @log_is_up.setter
    def log_is_up(self, bint up):
        self.topics.ref.down = 0 if up else <uint32_t>0xFFFFFFFF

    def set_log_up(self, int worker, bint up) -> None:
        cdef uint32_t bit = <uint32_t>1 << worker
        self.topics.ref.down = self.topics.ref.down & ~bit if up else self.topics.ref.down | bit

    def push_job(self, const unsigned char[::1] slot, int worker=0) -> None:
        """Send a descriptor to a log worker, after all earlier descriptors.

        Raises ValueError if the slot has the wrong size, IndexError for an unknown worker and
        MemoryError if the ring is full and the slot cannot be kept.
        """
        if slot.shape[0] != sizeof(Slot):
            raise ValueError(f"a slot has {sizeof(Slot)} bytes, not {slot.shape[0]}")
        if not 0 <= worker < self.log_count:
            raise IndexError(f"log worker {worker} of {self.log_count}")
        if to_log(&self.logs[worker], <const Slot *>&slot[0], self.counters):
            raise MemoryError("no memory for a job that waits for room in the log ring")

    def forward(self, Arena arena, uint32_t first_number, apis: Iterable[tuple[int, int, int, int]]) -> None:
        """Make the turn forward common requests of some APIs while `forwards` is set. Raises MemoryError.

        `arena` is the handler's own, `first_number` the number of its first call to the coordinator. `apis`
        has for each API the key, the oldest and latest version, and the first version with tags in the
        response's header.
        """
        self.forwarded.entries = <ForwardedEntry *>zeroed(FORWARDED_MAX, sizeof(ForwardedEntry))
        if self.forwarded.entries == NULL:
            raise MemoryError("no memory for requests that are forwarded")
        self.arena, self.forwarded.owner, self.forwarded.next_number = arena, self.index, first_number
        for key, first, last, first_with_tags in apis:
            if not 0 <= key < APIS_MAX or last > 0x7F:
                raise ValueError(f"API key {key}, version {last}: no call has room for these")
            self.forwarded.apis[<int>key].first, self.forwarded.apis[<int>key].last = first, last
            self.forwarded.apis[<int>key].first_with_tags = first_with_tags
            self.forwarded.apis[<int>key].used = True

    def next_call_number(self) -> int:
        """Return a new number for a call to the coordinator: the turn and Python use one sequence."""
        self.forwarded.next_number += 1
        return self.forwarded.next_number - 1

    @property
    def forwarded_bytes_max(self) -> int:
        """Size of the largest body that the turn forwards, in bytes."""
        return self.forwarded.bytes_max

    @forwarded_bytes_max.setter
    def forwarded_bytes_max(self, uint32_t most):
        self.forwarded.bytes_max = min(most, <uint32_t>0xFFFF)

    @property
    def forwarded_count(self) -> int:
        """Number of requests that the turn has forwarded and that are not answered."""
        return self.forwarded.count

    def take_forwarded(self, number: int | None = None) -> list[Forwarded]:
        """Hand over the unanswered calls of the turn to Python: the call `number`, or all, oldest first.

        The blocks of these calls stay lent to the coordinator.
        """
        cdef uint32_t i
        cdef ForwardedEntry *entry
        taken = []
        for i in range(FORWARDED_MAX if self.forwarded.count else 0):
            entry = &self.forwarded.entries[(self.forwarded.next_number + i) & (FORWARDED_MAX - 1)]
            if entry.used and (number is None or entry.number == number):
                taken.append(Forwarded(
                    (<char *>&entry.request)[:sizeof(Slot)], entry.number, entry.block, entry.generation,
                    entry.bytes, entry.taken_ns, entry.passed_on_ns, entry.dropped,
                ))
                entry.used = False
                self.forwarded.count -= 1
        return taken

    def forget_forwarded(self, int processor) -> None:
        """Mark the forwarded requests of a dead processor: the coordinator's answers to them are dropped."""
        cdef uint32_t i
        for i in range(FORWARDED_MAX if self.forwarded.count else 0):
            if self.forwarded.entries[i].request.processor == processor:
                self.forwarded.entries[i].dropped = True

    @property
    def waiting_jobs(self) -> int:
        """Number of jobs that wait for room in a log ring."""
        return self._waiting_jobs()

    @property
    def shared_jobs(self) -> int:
        """Number of jobs for several log workers that at least one of the workers has not returned yet."""
        return self.shared.count

    def flush(self) -> None:
        """Publish the pushed descriptors and ring the log workers."""
        self._publish()

    def drop_jobs(self, int worker=0, int owner=EVERYTHING) -> list[bytes]:
        """Forget the jobs that wait for room in the ring of log worker `worker`.

        Return the forgotten jobs that only `worker` was to get. A job that other workers get, too, is not
        returned: it ends when those workers have returned it.
        `owner`: a processor, to forget only the jobs in its arena; ANY_PROCESSOR: in any processor's arena.
        """
        cdef LogPeer *log = &self.logs[worker]
        cdef ProduceSlot job
        cdef uint64_t i, kept = 0
        dropped = []
        for i in range(log.waiting.count):
            memcpy(&job, &log.waiting.slots[i], sizeof(Slot))
            of_processor = job.kind == PRODUCE or is_shared(&job)
            if owner != EVERYTHING and not (of_processor and owner in (ANY_PROCESSOR, job.owner)):
                log.waiting.slots[kept] = log.waiting.slots[i]
                kept += 1
            elif is_shared(&job):
                self._returned(&job, worker)
            else:
                dropped.append((<char *>&log.waiting.slots[i])[:sizeof(Slot)])
        log.waiting.count = kept
        if owner == EVERYTHING:
            if log.asked_for_space:
                ring_want_space(log.ring, False)
            log.asked_for_space = log.staged = False
        return dropped

    def lose_shared(self, int worker) -> None:
        """Give up shared jobs that a fenced log worker has not returned: whether it did its part is unknown.

        The connection of each such job is closed as soon as the other workers have returned the job.
        """
        cdef uint32_t i
        cdef SharedJob *entry
        for i in range(self.shared.room):
            entry = &self.shared.entries[i]
            if entry.used and entry.owing >> worker & 1:
                entry.lost = True
                entry.owing &= ~(<uint32_t>1 << worker)
                if entry.owing == 0:
                    self._complete(entry)

    def forget_shared(self, int processor) -> None:
        """Mark the shared jobs of a dead processor, or of all (ANY_PROCESSOR): their answers are dropped."""
        cdef uint32_t i
        for i in range(self.shared.room):
            if self.shared.entries[i].used and processor in (
                ANY_PROCESSOR, self.shared.entries[i].job.processor,
            ):
                self.shared.entries[i].dropped = True

    def produce_passed_on(self, int processor, uint32_t channel) -> None:
        """Note that Python has passed on or answered a produce of this channel. When no produce
        is left to Python, the turn may take the channel's later ones.
        """
        cdef int i
        for i in range(self.peer_count):
            if self.peers[i].index == processor and self.peers[i].slow_produces[channel]:
                self.peers[i].slow_produces[channel] -= 1

    def hold_produces(self, int processor, uint32_t channel) -> None:
        """Leave a channel's produces to Python. One `produce_passed_on` undoes one call of this method."""
        cdef int i
        for i in range(self.peer_count):
            if self.peers[i].index == processor and self.peers[i].requests:
                self.peers[i].slow_produces[channel] += 1

    def forget_produces(self, int processor) -> None:
        """Forget that produces of a dead processor were left to Python."""
        cdef int i
        for i in range(self.peer_count):
            if self.peers[i].index == processor and self.peers[i].slow_produces != NULL:
                memset(self.peers[i].slow_produces, 0, CHANNEL_PLACES)

    def rebind_log(self, int worker=0) -> None:
        """Bind the rings from and to a log worker again: they were reset for the worker's successor."""
        self.log_rings[worker].rebind()
        self.rebind(log_worker(worker))

    def rebind(self, int index) -> None:
        for ring in self._inboxes(index):
            ring.rebind()

    def _inboxes(self, int index):
        cdef int i
        for i in range(self.peer_count):
            if self.peers[i].index == index:
                yield self.inboxes[i]

    def drop_inbox(self, int index) -> list[bytes]:
        """Take and return the slots left in a dead peer's ring. Call this after the peer was fenced."""
        left = []
        for ring in self._inboxes(index):
            taken, _ = ring.take(1 << 20)
            left += [taken[at : at + sizeof(Slot)] for at in range(0, len(taken), sizeof(Slot))]
        return left

    def run(self, int timeout_ms) -> list[bytes]:
        """Do one turn. Return the answers that Python must send, then the requests that it must handle."""
        return self._turns(timeout_ms, 0)

    def serve(self, int timeout_ms) -> list[bytes]:
        """Do turns, like `run`, for as long as each finds requests and leaves nothing for Python.

        The Python code between two turns costs more than a turn does.
        """
        return self._turns(timeout_ms, NATIVE_AT_MOST_NS)

    cdef list _turns(self, int timeout_ms, uint64_t longest_ns):
        cdef uint64_t i, begun_ns = monotonic_ns(), passed_ns
        cdef int failed, left_ms = timeout_ms
        self.slow.count, self.left_to_forward = 0, False
        with nogil:
            while True:
                failed = self._run(left_ms)
                passed_ns = monotonic_ns() - begun_ns
                left_ms = timeout_ms - <int>(passed_ns // 1000000)
                if failed or passed_ns >= longest_ns or left_ms <= 0 or self._is_for_python():
                    break
        if failed:
            raise MemoryError("no memory for the slots of a turn")
        unsent = [(<char *>&self.unsent.slots[i])[:sizeof(Slot)] for i in range(self.unsent.count)]
        self.unsent.count = 0
        return unsent + [(<char *>&self.slow.slots[i])[:sizeof(Slot)] for i in range(self.slow.count)]

    cdef bint _is_for_python(self) noexcept nogil:
        """Return True if slots, jobs or changed words need Python, or the last turn found nothing to do."""
        return (
            self.slow.count + self.unsent.count != 0 or self._waiting_jobs() != 0
            or self.found == 0 or self._has_news()
        )

    cdef int _run(self, int timeout_ms) noexcept nogil:
        cdef int i, n, failed = 0
        cdef uint64_t requests = 0, begun_ns
        cdef bint late = False
        for i in range(self.log_count):
            drain_to_log(&self.logs[i])
        self._publish()
        if timeout_ms > 0:
            self._sleep(timeout_ms)
        begun_ns = monotonic_ns()
        heartbeat(self.counters, begun_ns)
        self.heavy_for_python, self.answer_count = False, 0
        for n in range(self.peer_count):
            i = (self.first_peer + n) % self.peer_count
            while failed == 0 and ring_waiting(self.peers[i].inbox):
                if self.peers[i].requests and (self.paused or late):
                    break
                failed = self._take(&self.peers[i], &requests)
                if self.peers[i].requests and monotonic_ns() - begun_ns > TURN_AT_MOST_NS:
                    # The next turn begins with another peer, so that each gets its share.
                    late, self.first_peer = True, (i + 1) % self.peer_count
        self._publish()
        if not self.heavy_for_python and not self.python_works and load_relaxed(self.heavy):
            store_relaxed(self.heavy, 0)
        self.found = requests + self.answer_count
        if requests:
            histogram_record(self.counters, REQUESTS_PER_TURN, requests)
        return failed

    cdef bint _something_waits(self) noexcept nogil:
        cdef int i
        for i in range(self.peer_count):
            if not (self.paused and self.peers[i].requests) and ring_waiting(self.peers[i].inbox):
                return True
        for i in range(self.log_count):
            if self.logs[i].waiting.count != 0 and ring_room(self.logs[i].ring) != 0:
                return True
        return self._has_news()

    cdef uint64_t _waiting_jobs(self) noexcept nogil:
        cdef uint64_t count = 0
        cdef int i
        for i in range(self.log_count):
            count += self.logs[i].waiting.count
        return count

    cdef bint _has_news(self) noexcept nogil:
        cdef int i
        for i in range(self.watched_count):
            if load_acquire(self.watched[i].word) != self.watched[i].seen:
                return True
        return False

    cdef inline bint _must_leave(self) noexcept nogil:
        """Return True if Python must serve what was taken: the broker does not lead, or permissions may have
        changed, and Python has not read the change yet.
        """
        cdef Watched *watched = &self.watched[self.permissions_word]
        return (
            self.leaves_all or is_past(load_relaxed(self.leading))
            or (self.topics.ref.grants != NULL and load_acquire(watched.word) != watched.seen)
        )

    cdef void _sleep(self, int timeout_ms) noexcept nogil:
        cdef uint64_t before
        bell_arm(self.bell)
        if not self._something_waits():
            before = monotonic_ns()
            bell_sleep(self.bell, timeout_ms)
            counter_add(self.counters, COUNT_IDLE_NS, monotonic_ns() - before)
            counter_add(self.counters, COUNT_WAKEUPS, 1)
        bell_disarm(self.bell)

    cdef int _take(self, Peer *peer, uint64_t *requests) noexcept nogil:
        """Take up to TAKEN_AT_ONCE slots of one ring and act on them. Return nonzero if memory runs out."""
        # Copied, not cast: the compiler may assume that a Slot and a RequestSlot never share memory.
        cdef RequestSlot taken[TAKEN_AT_ONCE]
        cdef uint64_t count = ring_waiting(
            peer.inbox
        ), i, own = 0, fast = 0, slow = 0, fetches = 0, now_ns, before_ns
        cdef uint64_t since_clock = 0, unpacked
        cdef int64_t now_ms
        cdef int failed = 0
        cdef Slot slot
        cdef ProduceSlot job
        cdef RequestSlot *request
        if count > TAKEN_AT_ONCE:
            count = TAKEN_AT_ONCE
        for i in range(count):
            memcpy(&taken[i], ring_peek(peer.inbox, i), sizeof(Slot))
            if peer.requests and taken[i].kind == REQUEST and taken[i].flags & HEAVY:
                if load_relaxed(self.heavy) == 0:
                    store_relaxed(self.heavy, monotonic_ns())
        if ring_advance(peer.inbox, count):
            bell_ring(peer.bell)
        now_ns, now_ms = monotonic_ns(), wall_clock_ms()
        # A change of permissions that was answered before one of these was sent is among the news by now.
        self.leaves_these = self._must_leave()
        for i in range(count):
            request = &taken[i]
            memcpy(&slot, request, sizeof(Slot))
            if not peer.requests or request.kind != REQUEST:
                failed |= self._take_other(peer, &slot, request.kind)
                continue
            own += 1
            if request.api_key == PRODUCE_KEY:
                self.unpacker.ref.too_large = 0
                if (
                    not self.leaves_these and not peer.slow_produces[request.channel]
                    and self._produce(peer, request, now_ms, &job)
                ):
                    job.queue_us = stamp_us(request.received_ns, now_ns)
                    unpacked = self.unpacker.ref.unpacked_bytes
                    since_clock += request.length + unpacked + 256
                    if since_clock >= CLOCK_EVERY_BYTES:
                        since_clock, before_ns, now_ns = 0, now_ns, monotonic_ns()
                        job.local_us = stamp_us(before_ns, now_ns)
                    failed |= self._send(peer, &job)
                    count_produce(&self.meters.ref, peer.arena, &job, unpacked)
                    fast += 1
                    continue
                slow += 1
                peer.slow_produces[request.channel] += 1
                if self.unpacker.ref.too_large:
                    self._announce(request, &slot)
            elif request.api_key == FETCH_KEY and self._fetch(peer, request, now_ns):
                fetches += 1
                continue
            elif is_forwardable(&self.forwarded, request.api_key):
                if self._forward(peer, request, now_ns):
                    continue
                self.left_to_forward = True
            if request.flags & HEAVY:
                self.heavy_for_python = True
            failed |= append(&self.slow, &slot)
        requests[0] += own
        counter_add(self.counters, COUNT_REQUESTS, own)
        counter_add(self.counters, COUNT_PRODUCE_FAST, fast)
        counter_add(self.counters, COUNT_PRODUCE_SLOW, slow)
        counter_add(self.counters, COUNT_FETCHES, fetches)
        counter_add(self.counters, COUNT_FETCHES_FAST, fetches)
        return failed

    cdef int _take_other(self, Peer *peer, const Slot *slot, int kind) noexcept nogil:
        """Act on a non-request descriptor, or keep it for Python. Return nonzero if memory runs out."""
        cdef ProduceSlot job
        if kind == PRODUCED and self._is_shared(slot):
            memcpy(&job, slot, sizeof(Slot))
            return self._returned(&job, peer.worker)
        if kind == ANSWER and self._pass_answer_on(peer, slot):
            return 0
        return append(&self.slow, slot)

    cdef void _announce(self, RequestSlot *request, Slot *slot) noexcept nogil:
        """Mark a request and its copy `slot` as heavy: its batches unpack to too many bytes for the turn."""
        self.unpacker.ref.too_large = 0
        request.flags |= HEAVY
        memcpy(slot, request, sizeof(Slot))
        if load_relaxed(self.heavy) == 0:
            store_relaxed(self.heavy, monotonic_ns())

    cdef inline bint _produce(
        self, Peer *peer, RequestSlot *request, int64_t now_ms, ProduceSlot *job
    ) noexcept nogil:
        if self.clients.ref.on:
            return self._produce_on_account(peer, request, now_ms, job)
        return try_produce(
            request, peer.arena, &self.topics.ref, &self.unpacker.ref, now_ms, self.index, job,
        )

    cdef bint _produce_on_account(
        self, Peer *peer, RequestSlot *request, int64_t now_ms, ProduceSlot *job
    ) noexcept nogil:
        """Turn a request into a job and charge its client. Return False to leave it to Python."""
        cdef uint64_t begun_ns = monotonic_ns()
        cdef int64_t clock_ms = begun_ns // 1000000, pause_ms = 0, time_ms = 0, spent_ns
        cdef Client *client = self._client(peer, request)
        if client == NULL or not try_produce(
            request, peer.arena, &self.topics.ref, &self.unpacker.ref, now_ms, self.index, job,
        ):
            return False
        if client.produce.key:
            pause_ms = charge(
                &self.clients.ref, QuotaKind.QUOTA_PRODUCE, client.produce.key, client.produce.bound,
                request.length - SIZE_FIELD_BYTES, clock_ms,
            )
        spent_ns = monotonic_ns() - begun_ns + <uint64_t>request.network * NETWORK_UNIT_NS
        if job.acks == 0:
            add_quota(
                quota_of_all(&self.meters.ref, QuotaKind.QUOTA_REQUEST), QuotaWord.QUOTA_EXEMPT, spent_ns,
            )
        elif client.request.key:
            time_ms = charge(
                &self.clients.ref, QuotaKind.QUOTA_REQUEST, client.request.key, client.request.bound,
                spent_ns, clock_ms,
            )
            time_ms = self.window_ms if time_ms > self.window_ms else time_ms
        if time_ms and time_ms >= pause_ms:
            set_throttle(job, peer.arena, request.api_version, <uint32_t>time_ms, THROTTLED_BY_REQUEST)
            note_pause(&self.meters.ref, QuotaKind.QUOTA_REQUEST, client.request.key, time_ms)
        elif pause_ms:
            set_throttle(job, peer.arena, request.api_version, <uint32_t>pause_ms, THROTTLED_BY_PRODUCE)
            note_pause(&self.meters.ref, QuotaKind.QUOTA_PRODUCE, client.produce.key, pause_ms)
        return True

    cdef bint _fetches_freely(self, Peer *peer, RequestSlot *request) noexcept nogil:
        cdef Client *client = self._client(peer, request)
        return client != NULL and not client.fetch_limited

    cdef Client *_client(self, Peer *peer, RequestSlot *request) noexcept nogil:
        cdef uint8_t *frame = peer.arena + request.block
        cdef int16_t length = <int16_t>(<uint16_t>frame[CLIENT_ID_AT] << 8 | frame[CLIENT_ID_AT + 1])
        return client_of(
            &self.clients.ref, request.connection, peer.sessions[request.channel].revision,
            frame + CLIENT_ID_AT + 2, <uint32_t>length if length > 0 else 0,
        )

    cdef bint _fetch(self, Peer *peer, RequestSlot *request, uint64_t taken_ns) noexcept nogil:
        """Answer a hot fetch. Return False to leave it to Python, for instance if its flag AGAIN is set."""
        cdef ReplySlot answer
        cdef FetchCounts counts
        cdef Slot slot
        if self.leaves_these or not self.fetch_is_fast or request.flags & AGAIN or peer.outbox == NULL:
            return False
        if self.clients.ref.on and not self._fetches_freely(peer, request):
            return False
        if not has_room(peer.outbox):
            return False            # checked before `try_fetch`, which changes the session
        if not try_fetch(
            request, peer.arena, &self.topics.ref, &self.table.ref, &self.fetch_positions.ref,
            &self.fetch_sessions.ref, taken_ns // 1000000, self.fetch_bytes_max, &answer, &counts,
        ):
            return False
        answer.done_ns = monotonic_ns()
        answer.queue_us = stamp_us(request.received_ns, taken_ns)
        answer.local_us = stamp_us(taken_ns, answer.done_ns)
        memcpy(&slot, &answer, sizeof(Slot))
        if not ring_stage(peer.outbox, &slot):
            return False
        peer.has_staged = True
        count_fetch(&self.meters.ref, &counts)
        if counts.incremental:
            counter_add(self.counters, COUNT_FETCHES_INCREMENTAL, 1)
        return True

    cdef bint _forward(self, Peer *peer, RequestSlot *request, uint64_t taken_ns) noexcept nogil:
        """Forward a short request to the coordinator. Return False to leave it to Python."""
        cdef CallSlot call
        cdef Slot slot
        if not self.forwards or self.left_to_forward or self.leaves_these or self.python_works:
            return False
        if self.topics.ref.grants != NULL or self.clients.ref.on or not has_room(self.coordinator.outbox):
            return False
        if not forward_begin(
            &self.forwarded, request, peer.arena, &peer.sessions[request.channel], &self.arena.ref,
            taken_ns, monotonic_ns(), self.coordinator.index, &call,
        ):
            return False
        memcpy(&slot, &call, sizeof(Slot))
        ring_stage(self.coordinator.outbox, &slot)
        self.coordinator.has_staged = True
        counter_add(self.counters, COUNT_CALLS_DELAYED, 1)
        return True

    cdef bint _pass_answer_on(self, Peer *peer, const Slot *slot) noexcept nogil:
        """Pass the coordinator's response on to the processor. Return False if Python must do that."""
        cdef CallSlot answer
        cdef ReplySlot reply
        cdef ReturnSlot back
        cdef Slot staged
        cdef Peer *asker
        cdef ForwardedEntry *entry
        memcpy(&answer, slot, sizeof(Slot))
        entry = forward_entry(&self.forwarded, answer.request) if peer == self.coordinator else NULL
        if entry == NULL or answer.block == 0 or not has_room(peer.outbox):
            return False
        if not entry.dropped:
            asker = self._processor(entry.request.processor)
            if asker == NULL or not has_room(asker.outbox) or not forward_answer(
                entry, &self.forwarded, &answer, peer.arena, asker.arena, &self.meters.ref, &reply,
            ):
                return False
            reply.done_ns = monotonic_ns()
            reply.queue_us = stamp_us(entry.request.received_ns, entry.taken_ns)
            reply.local_us = stamp_us(entry.taken_ns, entry.passed_on_ns)
            memcpy(&staged, &reply, sizeof(Slot))
            ring_stage(asker.outbox, &staged)
            asker.has_staged = True
        memset(&back, 0, sizeof(Slot))
        back.kind, back.owner, back.block, back.generation = (
            RETURN, answer.owner, answer.block, answer.generation,
        )
        memcpy(&staged, &back, sizeof(Slot))
        ring_stage(peer.outbox, &staged)
        peer.has_returns = True
        forward_end(&self.forwarded, entry, &self.arena.ref)
        counter_add(self.counters, COUNT_CALLS_DELAYED, <uint64_t>-1)
        self.answer_count += 1
        return True

    cdef Peer *_processor(self, uint16_t index) noexcept nogil:
        cdef int i
        for i in range(self.peer_count):
            if self.peers[i].index == index:
                return &self.peers[i]
        return NULL

    cdef int _send(self, Peer *peer, ProduceSlot *job) noexcept nogil:
        """Send the job to each log worker that has a partition of it. Return nonzero if memory runs out."""
        cdef uint32_t workers = (<JobHeader *>(peer.arena + job.block + job.job)).workers
        cdef Slot slot
        cdef SharedJob *entry
        cdef int number, failed = 0
        if workers & (workers - 1):
            entry = shared_begin(&self.shared, job, peer.arena)
            if entry == NULL:
                return -1
            job.kind, job.request = PRODUCE_BACK, shared_number(&self.shared, entry)
        memcpy(&slot, job, sizeof(Slot))
        for number in range(self.log_count):
            if workers >> number & 1:
                failed |= to_log(&self.logs[number], &slot, self.counters)
        return failed

    cdef inline bint _is_shared(self, const Slot *produced) noexcept nogil:
        """Return True if a returned job is a shared job. If not, it is Python's, in this handler's arena."""
        cdef ProduceSlot job
        memcpy(&job, produced, sizeof(Slot))
        return job.owner != self.index

    cdef int _returned(self, const ProduceSlot *back, int worker) noexcept nogil:
        cdef SharedJob *entry = shared_returned(&self.shared, back, <uint32_t>worker)
        return self._complete(entry) if entry != NULL else 0

    cdef int _complete(self, SharedJob *entry) noexcept nogil:
        """Answer a job that all its workers have returned. If the ring is full, leave sending to Python."""
        cdef ReplySlot reply
        cdef Slot slot
        cdef int i, failed = 0
        for i in range(self.peer_count if not entry.dropped else 0):
            if self.peers[i].index != entry.job.processor:
                continue
            shared_answer(entry, self.peers[i].arena, &self.meters.ref, &reply)
            memcpy(&slot, &reply, sizeof(Slot))
            if ring_stage(self.peers[i].outbox, &slot):
                self.peers[i].has_staged = True
            else:
                failed = append(&self.unsent, &slot)
        shared_end(&self.shared, entry)
        return failed

    cdef void _publish(self) noexcept nogil:
        cdef int i
        for i in range(self.log_count):
            publish_log(&self.logs[i])
        for i in range(self.peer_count):
            if self.peers[i].has_staged:
                self.peers[i].has_staged = self.peers[i].has_returns = False
                ring_publish(self.peers[i].outbox)
                bell_ring(self.peers[i].bell)
            elif self.peers[i].has_returns:
                self.peers[i].has_returns = False
                ring_publish(self.peers[i].outbox)


cdef inline uint32_t stamp_us(uint64_t since_ns, uint64_t now_ns) noexcept nogil:
    """Return the time from `since_ns` to `now_ns` in microseconds, at most 2**32 - 1 (71 minutes)."""
    cdef uint64_t passed_us = (now_ns - since_ns) // 1000 if now_ns > since_ns else 0
    return <uint32_t>passed_us if passed_us < 0xFFFFFFFFu else <uint32_t>0xFFFFFFFFu
