"""Which processes there are, who talks to whom, and the memory that it takes.

Every ring and doorbell for the fixed maximum of processes exists before the first fork; what is not used is
never touched and costs nothing. A process is named by its index for its whole role's life; a successor takes
over the index behind a fence.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mpbroker.config import workers
from mpbroker.config.listeners import MAX_LISTENERS
from mpbroker.ipc import meters, progress, session, settings
from mpbroker.ipc import table as partition_table
from mpbroker.ipc.connections import Ledger, ledger_bytes
from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.listeners import (
    COUNTS_BYTES,
    LISTENERS_BYTES,
    ListenerCounts,
    ListenerTable,
)
from mpbroker.ipc.meters import Meters, Reader
from mpbroker.ipc.session import Sessions
from shm import doorbell, marks, rates, region, ring, table
from shm.arena import Arena
from shm.counters import CounterPage, page_bytes
from shm.doorbell import Doorbell
from shm.marks import WaitingMarks
from shm.rates import SharedRates
from shm.region import Block, Region
from shm.ring import Ring
from shm.table import SlotTable
from shm.word import Words

LAYOUT_VERSION = 1
PUBLIC_MAGIC = b"MPBKPUBL"
PRIVATE_MAGIC = b"MPBKPRIV"

SUPERVISOR = 0
ACCEPTOR = 1
COORDINATOR = 2
LOG = 3
CONTROL_ACCEPTOR = 4
CLEANER = 5
SCRUBBER = 6
ACCEPTORS = (ACCEPTOR, CONTROL_ACCEPTOR)
# They have neither rings nor an arena: nobody holds anything of theirs when they die.
ALONE = (*ACCEPTORS, SCRUBBER)
# Of each plane's workers those of the control plane have the highest number. They talk to each other only.
FIRST_PROCESSOR = 8
MAX_PROCESSORS = workers.MAX_PROCESSORS
CONTROL_PROCESSOR = FIRST_PROCESSOR + MAX_PROCESSORS
FIRST_HANDLER = CONTROL_PROCESSOR + 1
MAX_HANDLERS = workers.MAX_HANDLERS
CONTROL_HANDLER = FIRST_HANDLER + MAX_HANDLERS
PROCESSES = CONTROL_HANDLER + 1
PROCESSORS = tuple(range(FIRST_PROCESSOR, FIRST_HANDLER))
HANDLERS = tuple(range(FIRST_HANDLER, PROCESSES))

# A ring holds what a pair can have under way at once; who finds it full keeps the rest and asks for room.
REQUEST_RING_SLOTS = 1024
ANSWER_RING_SLOTS = 4096
CALL_RING_SLOTS = 256
CONTROL_RING_SLOTS = 32
# Kafka's capacity of the control plane's request queue (SocketServer.ControlPlaneQueueSize).
CONTROL_QUEUED_REQUESTS = 20
# Connections that one processor can serve at once.
CHANNELS_PER_PROCESSOR = 32768
SESSIONS_BYTES = CHANNELS_PER_PROCESSOR * session.BYTES_EACH
LEDGER_BYTES = ledger_bytes(CHANNELS_PER_PROCESSOR)

# Clients that can be measured at once by each handler; what is idle makes room.
QUOTA_ROWS = 8192
QUOTA_SECRET_BYTES = 16

COUNTER_PAGE_BYTES = page_bytes(Counter.COUNTERS, Histogram.HISTOGRAMS)
assert PROCESSES <= marks.MAX_WAITERS


def processor(number: int) -> int:
    """The process index of processor `number`."""
    assert 0 <= number < MAX_PROCESSORS
    return FIRST_PROCESSOR + number


def handler(number: int) -> int:
    """The process index of handler `number`."""
    assert 0 <= number < MAX_HANDLERS
    return FIRST_HANDLER + number


def handlers_of(processor: int) -> tuple[int, ...]:
    """Who takes the requests of a processor: the handlers of its plane."""
    return (CONTROL_HANDLER,) if processor == CONTROL_PROCESSOR else HANDLERS[:MAX_HANDLERS]


def processors_of(handler: int) -> tuple[int, ...]:
    """Whose requests a handler takes: those of the processors of its plane."""
    return (CONTROL_PROCESSOR,) if handler == CONTROL_HANDLER else PROCESSORS[:MAX_PROCESSORS]


def acceptor_of(processor: int) -> int:
    """Who gives a processor its connections."""
    return CONTROL_ACCEPTOR if processor == CONTROL_PROCESSOR else ACCEPTOR


def is_control_plane(index: int) -> bool:
    return index in (CONTROL_ACCEPTOR, CONTROL_PROCESSOR, CONTROL_HANDLER)


def is_processor(index: int) -> bool:
    return FIRST_PROCESSOR <= index < FIRST_HANDLER


def is_handler(index: int) -> bool:
    return FIRST_HANDLER <= index < PROCESSES


def name_of(index: int) -> str:
    """How a process is called in logs, titles and errors."""
    names = {
        SUPERVISOR: "supervisor",
        ACCEPTOR: "acceptor",
        COORDINATOR: "coordinator",
        LOG: "log",
        CONTROL_ACCEPTOR: "control-plane acceptor",
        CLEANER: "cleaner",
        SCRUBBER: "scrubber",
        CONTROL_PROCESSOR: "control-plane processor",
        CONTROL_HANDLER: "control-plane handler",
    }
    if index in names:
        return names[index]
    if is_processor(index):
        return f"processor {index - FIRST_PROCESSOR}"
    return f"handler {index - FIRST_HANDLER}"


def ring_pairs() -> list[tuple[int, int, int]]:
    """(producer, consumer, slots) of every ring."""
    pairs = []
    for h in HANDLERS:
        slots = CONTROL_RING_SLOTS if is_control_plane(h) else REQUEST_RING_SLOTS
        for p in processors_of(h):
            pairs += [(p, h, slots), (h, p, slots)]
        pairs += [(h, LOG, REQUEST_RING_SLOTS), (LOG, h, REQUEST_RING_SLOTS)]
        pairs += [(h, COORDINATOR, CALL_RING_SLOTS), (COORDINATOR, h, CALL_RING_SLOTS)]
    pairs += [(LOG, p, ANSWER_RING_SLOTS) for p in PROCESSORS]
    pairs += [(COORDINATOR, LOG, CALL_RING_SLOTS), (LOG, COORDINATOR, CALL_RING_SLOTS)]
    pairs += [(CLEANER, LOG, CONTROL_RING_SLOTS), (LOG, CLEANER, CONTROL_RING_SLOTS)]
    return pairs


@dataclass(frozen=True)
class Sizes:
    """What the operator decides about memory."""

    partition_slots: int = 16384
    request_limit_bytes: int = 1 << 30  # per processor, until the supervisor says something else
    reply_limit_bytes: int = 1 << 30  # per handler, and of the coordinator and the log process
    arena_extent_bytes: int = 16 << 30  # virtual
    quota_samples: int = 11
    quota_window_ms: int = 1000


class SharedMemory:
    """All memory of one broker, made by the supervisor before the first fork and inherited by every child.

    Blocks of the public region: `counters` (a page per process), `listeners` (counts per listener number),
    `table` (partition slots), `meters_…` (pages per API, topic and client: see meters.pxd). Blocks of the
    private region: `rings`, `doorbells`, `marks` (a row per partition slot, the waiter is handler number h),
    `dirty` (a word per handler number; non-zero: a slot that the handler marked has moved; written by the log
    process), `failed_dirs` (a word: the log directories that failed since the broker's start, a bit each by
    their place in log.dirs; written by the log process, which it outlives), `recovery` (how far that is with
    what it found, see progress.py), `damaged` (a word per partition
    slot, the word of damage: see table.pxd; written by the scrubber), `scrub_asked` (how often a scrub was
    asked for, written by the supervisor, and which of these has begun, written by the scrubber), `heavy` (a
    word per handler
    number: since when, in ns, it runs a heavy request, 0 if none; written by the handler), `replies_out`
    (a word per handler number: whether something waits for room in
    its reply arena; written by the handler), `queued` (a word per process: requests that wait in a
    processor or in its rings; written by it), `request_limits` (a word per process: the bytes of requests
    that a processor may hold; written by the supervisor), `fence_orders` (a word per process, written by the
    supervisor), `fence_acks` (a word per process, written by it), `roles` (a word per process: its
    incarnation, 0 while there is none; written by the supervisor), `orders` (run or stop; written by it),
    `request_log` (a word: whether requests are logged; written by the supervisor), `request_quotas` (a
    word: whether the time of anybody's requests is limited, so that processors take it; written by the
    coordinator), `states` (written by the
    process), `fatal` (the broker's exit status, written by the process that cannot go on), `bulletin`
    (metadata), `bulletin_acks` (a word per reader), `credentials` and `credential_acks` (the same for
    SCRAM credentials, which processors read), `limits` and `limit_acks` (the same for rates of addresses,
    which acceptors read), `settings` (the configuration as it is now: see ipc.settings), `sessions` (per
    processor number an entry for each of its channels, written by it) and `quotas` (what clients have used,
    per handler: see shm.rates).
    """

    BULLETIN_BYTES = 256 << 20
    CREDENTIALS_BYTES = 64 << 20
    LIMITS_BYTES = 64 << 20

    def __init__(self, public_path: Path, sizes: Sizes) -> None:
        self.sizes = sizes
        self.public_path = public_path
        self._ring_at: dict[tuple[int, int], tuple[int, int]] = {}
        at = 0
        for producer, consumer, slots in ring_pairs():
            self._ring_at[producer, consumer] = (at, slots)
            at += ring.ring_bytes(slots)
        self.public = Region.create_public(
            public_path, PUBLIC_MAGIC, LAYOUT_VERSION, public_blocks(sizes.partition_slots)
        )
        words = 8 * PROCESSES
        self.private = Region.create_private(
            PRIVATE_MAGIC,
            LAYOUT_VERSION,
            [
                Block("rings", at),
                Block("doorbells", PROCESSES * doorbell.BYTES),
                Block("marks", sizes.partition_slots * marks.ROW_BYTES),
                Block("dirty", words),
                Block("damaged", 8 * sizes.partition_slots),
                Block("scrub_asked", 64),
                Block("failed_dirs", 64),
                Block("recovery", progress.BYTES),
                Block("heavy", words),
                Block("replies_out", words),
                Block("fence_orders", words),
                Block("fence_acks", words),
                Block("roles", words),
                Block("queued", words),
                Block("request_limits", words),
                Block("orders", words),
                Block("request_log", 64),
                Block("request_quotas", 64),
                Block("states", words),
                Block("fatal", words),
                Block("bulletin_acks", words),
                Block("credential_acks", words),
                Block("limit_acks", words),
                Block("bulletin", self.BULLETIN_BYTES, 4096),
                Block("credentials", self.CREDENTIALS_BYTES, 4096),
                Block("limits", self.LIMITS_BYTES, 4096),
                Block("settings", settings.BYTES, 4096),
                Block("sessions", len(PROCESSORS) * SESSIONS_BYTES, 4096),
                Block("connections", len(PROCESSORS) * LEDGER_BYTES, 4096),
                Block("listeners", LISTENERS_BYTES, 4096),
                Block("quotas", rates.block_bytes(len(HANDLERS), QUOTA_ROWS, sizes.quota_samples), 4096),
            ],
        )
        limits = self.words("request_limits")
        for index in PROCESSORS:
            limits.store(index, sizes.request_limit_bytes)
        # Keys of clients in the rates are made with it, so that nobody can choose names that meet.
        self.quota_secret = os.urandom(QUOTA_SECRET_BYTES)
        self.bell_fds = [Doorbell.new_fd() for _ in range(PROCESSES)]
        self._arenas = {
            index: region.sparse(sizes.arena_extent_bytes)
            for index in (COORDINATOR, LOG, CLEANER, *PROCESSORS, *HANDLERS)
        }

    def ring(self, producer: int, consumer: int) -> Ring:
        """A view of the ring for either side."""
        at, slots = self._ring_at[producer, consumer]
        return Ring(self.private.block("rings")[at : at + ring.ring_bytes(slots)], slots)

    def doorbell(self, index: int) -> Doorbell:
        at = index * doorbell.BYTES
        return Doorbell(self.private.block("doorbells")[at : at + doorbell.BYTES], self.bell_fds[index])

    def arena(self, index: int) -> Arena:
        """The owner's allocator, or a borrower's view."""
        limit = self.sizes.reply_limit_bytes
        if is_processor(index):
            limit = self.words("request_limits").load(index)
        return Arena(self._arenas[index], limit)

    def sessions(self, index: int) -> Sessions:
        """The connections of a processor, for itself or for whoever holds requests of it."""
        at = (index - FIRST_PROCESSOR) * SESSIONS_BYTES
        return Sessions(self.private.block("sessions")[at : at + SESSIONS_BYTES])

    def connections(self, index: int) -> Ledger:
        """The ledger of a processor's connections."""
        at = (index - FIRST_PROCESSOR) * LEDGER_BYTES
        return Ledger(self.private.block("connections")[at : at + LEDGER_BYTES], CHANNELS_PER_PROCESSOR)

    def listeners(self) -> ListenerTable:
        return ListenerTable(self.private.block("listeners"))

    def listener_counts(self, number: int) -> ListenerCounts:
        return listener_counts(self.public, number)

    def rates(self, index: int) -> SharedRates:
        """What clients have used of their quotas, as a handler records it."""
        return SharedRates(
            self.private.block("quotas"),
            len(HANDLERS),
            QUOTA_ROWS,
            self.sizes.quota_samples,
            self.sizes.quota_window_ms,
            index - FIRST_HANDLER,
        )

    def counters(self, index: int) -> CounterPage:
        return counter_page(self.public, index)

    def meters(self, index: int) -> Meters:
        """The pages per API, topic and client of a process, for itself alone: it holds a descriptor."""
        return Meters(self.public, self.public_path, index, self.sizes.partition_slots)

    def table(self) -> SlotTable:
        return SlotTable(
            self.public.block("table"), self.sizes.partition_slots, partition_table.PAYLOAD_BYTES
        )

    def marks(self) -> WaitingMarks:
        return WaitingMarks(self.private.block("marks"), self.sizes.partition_slots)

    def words(self, name: str) -> Words:
        return Words(self.private.block(name))

    def reset_rings_of(self, index: int) -> None:
        """Behind a fence: gives a successor empty rings in both directions."""
        for producer, consumer in self._ring_at:
            if index in (producer, consumer):
                self.ring(producer, consumer).reset()

    def close(self) -> None:
        for fd in self.bell_fds:
            os.close(fd)
        self.public_path.unlink(missing_ok=True)


def public_blocks(partition_slots: int) -> list[Block]:
    """The blocks of the public region."""
    return [
        Block("counters", PROCESSES * COUNTER_PAGE_BYTES),
        Block("listeners", MAX_LISTENERS * COUNTS_BYTES),
        Block("table", partition_slots * table.slot_bytes(partition_table.PAYLOAD_BYTES), 4096),
        *meters.blocks(PROCESSES, partition_slots),
    ]


def counter_page(public: Region, index: int) -> CounterPage:
    """The counter page of a process, for itself or for a reader that attached the public region."""
    at = index * COUNTER_PAGE_BYTES
    return CounterPage(
        public.block("counters")[at : at + COUNTER_PAGE_BYTES], Counter.COUNTERS, Histogram.HISTOGRAMS
    )


def listener_counts(public: Region, number: int) -> ListenerCounts:
    """The counts of a listener, for its acceptor or for a reader that attached the public region."""
    assert 0 <= number < MAX_LISTENERS
    at = number * COUNTS_BYTES
    return ListenerCounts(public.block("listeners")[at : at + COUNTS_BYTES])


def meter_reader(public: Region) -> Reader:
    """All processes' pages per API, topic and client of an attached public region."""
    slots = len(public.block("table")) // table.slot_bytes(partition_table.PAYLOAD_BYTES)
    return Reader(public, PROCESSES, slots)


def attach_table(public: Region) -> SlotTable:
    """The partition table of an attached public region, for a reader."""
    block = public.block("table")
    return SlotTable(
        block, len(block) // table.slot_bytes(partition_table.PAYLOAD_BYTES), partition_table.PAYLOAD_BYTES
    )
