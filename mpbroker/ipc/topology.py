"""The processes, the rings between them, and the memory that they share.

Rings and doorbells for the fixed maximum of processes exist before the first fork. The unused ones are never
touched and cost nothing. An index names a role, such as "handler 0", as long as the broker runs. When the
process of a role has died and all others have dropped its state (a fence), a successor gets the same index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from mpbroker.config import workers
from mpbroker.config.listeners import MAX_LISTENERS
from mpbroker.ipc import client_metrics, faults, log_sizes, meters, progress, session, settings, unshipped
from mpbroker.ipc import table as partition_table
from mpbroker.ipc.client_metrics import PushQueue
from mpbroker.ipc.connections import Ledger, ledger_bytes
from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.leading import ALWAYS, Leading
from mpbroker.ipc.listeners import COUNTS_BYTES, LISTENERS_BYTES, ListenerCounts, ListenerTable
from mpbroker.ipc.log_sizes import DirSizes, PartitionSizes
from mpbroker.ipc.meters import Meters, Reader
from mpbroker.ipc.session import Sessions
from mpbroker.ipc.unshipped import Unshipped
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

LAYOUT_VERSION = 5
PUBLIC_MAGIC = b"MPBKPUBL"
PRIVATE_MAGIC = b"MPBKPRIV"

SUPERVISOR = 0
ACCEPTOR = 1
COORDINATOR = 2
LOG = 3
CONTROL_ACCEPTOR = 4
CLEANER = 5
SCRUBBER = 6
EXPORTER = 7
ACCEPTORS = (ACCEPTOR, CONTROL_ACCEPTOR)
# Processes without rings and arena: no other process holds anything of theirs when they die.
ALONE = (*ACCEPTORS, SCRUBBER, EXPORTER)
# The workers of the control plane have the highest number of their kind. They talk to each other only.
FIRST_PROCESSOR = 8
MAX_PROCESSORS = workers.MAX_PROCESSORS
CONTROL_PROCESSOR = FIRST_PROCESSOR + MAX_PROCESSORS
FIRST_HANDLER = CONTROL_PROCESSOR + 1
MAX_HANDLERS = workers.MAX_HANDLERS
CONTROL_HANDLER = FIRST_HANDLER + MAX_HANDLERS
# Log worker 0 is LOG; the others have indices behind all handlers.
MAX_LOG_WORKERS = workers.MAX_LOG_WORKERS
SECOND_LOG_WORKER = CONTROL_HANDLER + 1
# It talks to handlers, and runs only with remote.log.storage.system.enable.
TIER = SECOND_LOG_WORKER + MAX_LOG_WORKERS - 1
PROCESSES = TIER + 1
PROCESSORS = tuple(range(FIRST_PROCESSOR, FIRST_HANDLER))
HANDLERS = tuple(range(FIRST_HANDLER, SECOND_LOG_WORKER))
LOG_WORKERS = (LOG, *range(SECOND_LOG_WORKER, TIER))

# A ring holds what a pair can have under way at once. A producer that finds it full keeps the rest and asks
# for room.
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
# Loggers that have a level of their own (ipc.log_levels).
LOG_LEVELS = 20

# Clients that each handler can measure at once. Idle ones make room.
QUOTA_ROWS = 8192
QUOTA_SECRET_BYTES = 16

PUSH_QUEUE_BYTES = client_metrics.BYTES + (-client_metrics.BYTES) % 4096

# Bytes of the words of `dirty` that one log worker writes.
DIRTY_BYTES = 8 * len(HANDLERS) + (-8 * len(HANDLERS)) % 64
# Slots for each partition there can be, when several log workers give them out.
SPARE_SLOTS = 2
# The two words of `taken_over`.
IS_TAKEN_OVER, CLEAN_DIRS = 0, 1
COUNTER_PAGE_BYTES = page_bytes(Counter.COUNTERS, Histogram.HISTOGRAMS)
assert len(HANDLERS) <= marks.MAX_WAITERS


def processor(number: int) -> int:
    assert 0 <= number < MAX_PROCESSORS
    return FIRST_PROCESSOR + number


def handler(number: int) -> int:
    assert 0 <= number < MAX_HANDLERS
    return FIRST_HANDLER + number


def log_worker(number: int) -> int:
    worker: int = LOG_WORKERS[number]
    return worker


def log_worker_number(index: int) -> int:
    return 0 if index == LOG else index - SECOND_LOG_WORKER + 1


def log_worker_of_slot(slot: int, log_workers: int) -> int:
    """Return the number of the log worker that owns a slot of the partition table."""
    return slot % log_workers


def slots_given(partitions: SlotTable, log_workers: int) -> Iterator[int]:
    """Yield every slot that has ever had a partition, except the slot of `__cluster_metadata`.

    Each log worker uses its slots in ascending order, so the search for them ends at the first unused one.
    """
    for worker in range(log_workers):
        own = range(worker or log_workers, partitions.slots, log_workers)
        yield from takewhile(partitions.version, own)


def handlers_of(processor: int) -> tuple[int, ...]:
    """Return the indices of the handlers that serve a processor. The control plane has its own handler."""
    return (CONTROL_HANDLER,) if processor == CONTROL_PROCESSOR else HANDLERS[:MAX_HANDLERS]


def processors_of(handler: int) -> tuple[int, ...]:
    """Return the indices of the processors that a handler serves. The control plane has its own processor."""
    return (CONTROL_PROCESSOR,) if handler == CONTROL_HANDLER else PROCESSORS[:MAX_PROCESSORS]


def acceptor_of(processor: int) -> int:
    return CONTROL_ACCEPTOR if processor == CONTROL_PROCESSOR else ACCEPTOR


def is_control_plane(index: int) -> bool:
    return index in (CONTROL_ACCEPTOR, CONTROL_PROCESSOR, CONTROL_HANDLER)


def is_processor(index: int) -> bool:
    return FIRST_PROCESSOR <= index < FIRST_HANDLER


def is_handler(index: int) -> bool:
    return FIRST_HANDLER <= index < SECOND_LOG_WORKER


def is_log_worker(index: int) -> bool:
    return index == LOG or SECOND_LOG_WORKER <= index < TIER


def name_of(index: int) -> str:
    """Return the name of the process with this index, for logs, titles and errors."""
    names = {
        SUPERVISOR: "supervisor",
        ACCEPTOR: "acceptor",
        COORDINATOR: "coordinator",
        CONTROL_ACCEPTOR: "control-plane acceptor",
        CLEANER: "cleaner",
        SCRUBBER: "scrubber",
        EXPORTER: "exporter",
        TIER: "tier",
        CONTROL_PROCESSOR: "control-plane processor",
        CONTROL_HANDLER: "control-plane handler",
    }
    if index in names:
        return names[index]
    if is_processor(index):
        return f"processor {index - FIRST_PROCESSOR}"
    if is_log_worker(index):
        return f"log {log_worker_number(index)}"
    return f"handler {index - FIRST_HANDLER}"


def ring_pairs(log_workers: int = 1) -> list[tuple[int, int, int]]:
    """Return (index of the producer, index of the consumer, number of slots) of every ring."""
    logs = LOG_WORKERS[:log_workers]
    pairs = []
    for h in HANDLERS:
        slots = CONTROL_RING_SLOTS if is_control_plane(h) else REQUEST_RING_SLOTS
        for p in processors_of(h):
            pairs += [(p, h, slots), (h, p, slots)]
        for log in logs:
            pairs += [(h, log, REQUEST_RING_SLOTS), (log, h, REQUEST_RING_SLOTS)]
        pairs += [(h, COORDINATOR, CALL_RING_SLOTS), (COORDINATOR, h, CALL_RING_SLOTS)]
        pairs += [(h, TIER, CALL_RING_SLOTS), (TIER, h, CALL_RING_SLOTS)]
    for log in logs:
        pairs += [(log, p, ANSWER_RING_SLOTS) for p in PROCESSORS]
        pairs += [(COORDINATOR, log, CALL_RING_SLOTS), (log, COORDINATOR, CALL_RING_SLOTS)]
        pairs += [(CLEANER, log, CONTROL_RING_SLOTS), (log, CLEANER, CONTROL_RING_SLOTS)]
    return pairs


@dataclass(frozen=True)
class Sizes:
    """Sizes of shared memory that depend on settings. `partition_slots`: the total of all log workers."""

    partition_slots: int = 16384
    request_limit_bytes: int = 1 << 30  # per processor, until the supervisor gives out another limit
    reply_limit_bytes: int = 1 << 30  # per handler, and of the coordinator and the log process
    arena_extent_bytes: int = 16 << 30  # address space
    log_workers: int = 1
    quota_samples: int = 11
    quota_window_ms: int = 1000

    @property
    def most_partitions(self) -> int:
        """Return how many partitions the broker may have besides the partition of `__cluster_metadata`.

        With several log workers some slots are spare, since one worker may get more partitions than another.
        """
        return self.partition_slots // (SPARE_SLOTS if self.log_workers > 1 else 1) - 1


class SharedMemory:
    """All memory of one broker, made by the supervisor before the first fork and inherited by every child.

    The public region, which other programs may read, has these blocks: `counters` (a page per process),
    `listeners` (counts per listener number), `table` (partition slots), `log_dirs` and `log_sizes`
    (log_sizes.py), `meters_…` (counts per API, topic and client: meters.pxd).
    """

    BULLETIN_BYTES = 256 << 20
    CREDENTIALS_BYTES = 64 << 20
    LIMITS_BYTES = 64 << 20
    # A base takes at most 2.7 MB, with all alterations of brokers (coordinator.metadata.broker_rules).
    BROKERS_BYTES = 8 << 20

    def __init__(self, public_path: Path, sizes: Sizes) -> None:
        self.sizes = sizes
        self.public_path = public_path
        self._ring_at: dict[tuple[int, int], tuple[int, int]] = {}
        at = 0
        for producer, consumer, slots in ring_pairs(sizes.log_workers):
            self._ring_at[producer, consumer] = (at, slots)
            at += ring.ring_bytes(slots)
        self.public = Region.create_public(
            public_path, PUBLIC_MAGIC, LAYOUT_VERSION, public_blocks(sizes.partition_slots)
        )
        self.private = Region.create_private(PRIVATE_MAGIC, LAYOUT_VERSION, self._private_blocks(at))
        limits = self.words("request_limits")
        for index in PROCESSORS:
            limits.store(index, sizes.request_limit_bytes)
        self.leading().until_ns = ALWAYS
        # Keys of clients in the rates are made with it, so that no client can choose names that collide.
        self.quota_secret = os.urandom(QUOTA_SECRET_BYTES)
        self.bell_fds = [Doorbell.new_fd() for _ in range(PROCESSES)]
        self._arenas = {
            index: region.sparse(sizes.arena_extent_bytes)
            for index in (
                *(COORDINATOR, CLEANER, TIER, *PROCESSORS, *HANDLERS),
                *LOG_WORKERS[: sizes.log_workers],
            )
        }

    def _private_blocks(self, rings_bytes: int) -> list[Block]:
        """Return the blocks of the private region. The comment on each block names its writer and content.

        A block "per process" is indexed by process index, a block "per handler" by handler number.
        """
        words = 8 * PROCESSES
        sizes = self.sizes
        return [
            Block("rings", rings_bytes),
            Block("doorbells", PROCESSES * doorbell.BYTES),
            # Handlers: which of them wait for which partition slot. A row per slot, a place in it per
            # handler.
            Block("marks", sizes.partition_slots * marks.ROW_BYTES),
            # Each log worker, per handler: a partition that the handler has marked has moved.
            Block("dirty", MAX_LOG_WORKERS * DIRTY_BYTES),
            # Each log worker: the log directories that have failed since the broker's start, a bit each by
            # their place in log.dirs. The bit outlives its writer, and counts whichever worker set it.
            Block("failed_dirs", 64),
            # Log worker 0: whether it has emptied the journals that the last run left (written last); a bit
            # for each log directory that the last run closed cleanly.
            Block("taken_over", 64),
            # Each log worker: a bit for each log directory in which it has closed all that it owns.
            Block("closed_dirs", 64),
            # Each log worker: its progress in opening partitions (progress.py).
            Block("recovery", MAX_LOG_WORKERS * progress.BYTES),
            # The tier: the wall time (ms) before which all replicas have what was written; 0: no replica.
            Block("readable", 64),
            # The scrubber, per partition slot: the word of damage (table.pxd).
            Block("damaged", 8 * sizes.partition_slots),
            # The supervisor: how often a scrub was asked for. The scrubber: which of these has begun, and
            # whether one is running.
            Block("scrub_asked", 64),
            # Each handler: since when, in ns, it runs a heavy request; 0: it runs none.
            Block("heavy", words),
            # Each handler: whether something waits for room in its reply arena.
            Block("replies_out", words),
            # Each processor: requests that wait in it or in its rings.
            Block("queued", words),
            # The supervisor, per processor: the bytes of requests that it may hold.
            Block("request_limits", words),
            # The supervisor, or a handler for a client: the log levels (ipc.log_levels has the reason).
            Block("request_log", 64),
            Block("log_levels", 8 * LOG_LEVELS),
            # The coordinator: whether request time is limited for anybody, so that processors measure it.
            Block("request_quotas", 64),
            *self._remote_blocks(),
            *self._role_blocks(),
            *self._bulletin_blocks(),
            # The supervisor: the configuration as it is now (ipc.settings).
            Block("settings", settings.BYTES, 4096),
            # The supervisor: faults that the owner of a test's broker wants (ipc.faults).
            Block("faults", faults.BYTES, 4096),
            # Each processor: an entry for each of its channels (session.pxd).
            Block("sessions", len(PROCESSORS) * SESSIONS_BYTES, 4096),
            # Acceptors and processors: the connections of each processor (connections.pxd).
            Block("connections", len(PROCESSORS) * LEDGER_BYTES, 4096),
            # The supervisor: listeners that were added while the broker runs (ipc.listeners).
            Block("listeners", LISTENERS_BYTES, 4096),
            # Handlers: what clients have used of their quotas (shm.rates).
            Block("quotas", rates.block_bytes(len(HANDLERS), QUOTA_ROWS, sizes.quota_samples), 4096),
            # Each handler: metrics that clients have pushed; the exporter: how far it has taken them.
            Block("client_metrics", len(HANDLERS) * PUSH_QUEUE_BYTES, 4096),
        ]

    def _remote_blocks(self) -> list[Block]:
        """Return the blocks by which the tier and others talk about the object store."""
        sizes = self.sizes
        return [
            # The tier, per partition slot: the word of the segments in the object store (table.pxd).
            Block("remote", 8 * sizes.partition_slots),
            # Each log worker: the commit round that waits for the object store (unshipped.pxd).
            Block("unshipped", sizes.log_workers * unshipped.block_bytes(sizes.partition_slots), 4096),
            # The tier, per log worker: the last of its rounds that is in the object store.
            Block("shipped", 8 * MAX_LOG_WORKERS),
            # The tier: whether the store has a cut of what this start has found.
            Block("first_cut", 64),
            # The supervisor: how often the tier was asked to delete what the ledger does not name.
            Block("remote_asked", 64),
            # The supervisor before the first fork, then the tier: until when this broker leads (leading.py).
            Block("leading", 64),
        ]

    def _role_blocks(self) -> list[Block]:
        """Return the blocks with a word for each process: orders of the supervisor, states of processes."""
        words = 8 * PROCESSES
        return [
            # The supervisor, per process: the last order to be acknowledged (process.PeerOrder).
            Block("fence_orders", words),
            # Each process: the last order that it has obeyed.
            Block("fence_acks", words),
            # The supervisor, per process: the incarnation of its role; 0: it does not run.
            Block("roles", words),
            # The supervisor, per process: run or stop (process.Order).
            Block("orders", words),
            # The supervisor, per process: its process id; 0: it does not run.
            Block("pids", words),
            # Each process: how far it is (process.State).
            Block("states", words),
            # A process that cannot go on: the exit status of the broker.
            Block("fatal", words),
        ]

    def _bulletin_blocks(self) -> list[Block]:
        """Return the blocks of the coordinator's bulletins and of the readers' acknowledgements."""
        words = 8 * PROCESSES
        return [
            # Each reader of the four bulletins below: how far it has read.
            Block("bulletin_acks", words),
            Block("credential_acks", words),
            Block("limit_acks", words),
            Block("broker_acks", words),
            # The coordinator, for handlers and the tier: topics and quotas (ipc.metadata).
            Block("bulletin", self.BULLETIN_BYTES, 4096),
            # The coordinator, for processors: SCRAM credentials (ipc.credentials).
            Block("credentials", self.CREDENTIALS_BYTES, 4096),
            # The coordinator, for acceptors: rates of addresses (ipc.limits).
            Block("limits", self.LIMITS_BYTES, 4096),
            # The coordinator, for the supervisor: altered settings of brokers (ipc.broker_settings).
            Block("brokers", self.BROKERS_BYTES, 4096),
            # The supervisor: the version of them that it has applied as far as it can.
            Block("brokers_done", 64),
        ]

    def ring(self, producer: int, consumer: int) -> Ring:
        at, slots = self._ring_at[producer, consumer]
        return Ring(self.private.block("rings")[at : at + ring.ring_bytes(slots)], slots)

    def doorbell(self, index: int) -> Doorbell:
        at = index * doorbell.BYTES
        return Doorbell(self.private.block("doorbells")[at : at + doorbell.BYTES], self.bell_fds[index])

    def arena(self, index: int) -> Arena:
        """Return the arena in which a process allocates the blocks that it lends to other processes."""
        limit = self.sizes.reply_limit_bytes
        if is_processor(index):
            limit = self.words("request_limits").load(index)
        return Arena(self._arenas[index], limit)

    def sessions(self, index: int) -> Sessions:
        """Return the sessions of a processor, for the processor or for a process that holds its requests."""
        at = (index - FIRST_PROCESSOR) * SESSIONS_BYTES
        return Sessions(self.private.block("sessions")[at : at + SESSIONS_BYTES])

    def connections(self, index: int) -> Ledger:
        """Return the ledger of a processor's connections."""
        at = (index - FIRST_PROCESSOR) * LEDGER_BYTES
        return Ledger(self.private.block("connections")[at : at + LEDGER_BYTES], CHANNELS_PER_PROCESSOR)

    def leading(self) -> Leading:
        return Leading(self.words("leading"))

    def listeners(self) -> ListenerTable:
        return ListenerTable(self.private.block("listeners"))

    def listener_counts(self, number: int) -> ListenerCounts:
        return listener_counts(self.public, number)

    def rates(self, index: int) -> SharedRates:
        """Return the table of clients' usage of quotas, for the handler with this index to update."""
        return SharedRates(
            self.private.block("quotas"),
            len(HANDLERS),
            QUOTA_ROWS,
            self.sizes.quota_samples,
            self.sizes.quota_window_ms,
            index - FIRST_HANDLER,
        )

    def client_metrics(self, index: int) -> PushQueue:
        """Return the queue of pushed client metrics from the handler with this index to the exporter."""
        at = (index - FIRST_HANDLER) * PUSH_QUEUE_BYTES
        return PushQueue(self.private.block("client_metrics")[at : at + client_metrics.BYTES])

    def counters(self, index: int) -> CounterPage:
        return counter_page(self.public, index)

    def meters(self, index: int) -> Meters:
        """Return the counts per API, topic and client of a process, for that process to write.

        The result holds an open file descriptor.
        """
        return Meters(self.public, self.public_path, index, self.sizes.partition_slots)

    def table(self) -> SlotTable:
        return SlotTable(
            self.public.block("table"), self.sizes.partition_slots, partition_table.PAYLOAD_BYTES
        )

    def dir_sizes(self) -> DirSizes:
        return DirSizes(self.public.block("log_dirs"))

    def partition_sizes(self) -> PartitionSizes:
        return PartitionSizes(self.public.block("log_sizes"))

    def marks(self) -> WaitingMarks:
        return WaitingMarks(self.private.block("marks"), self.sizes.partition_slots)

    def failed_dirs(self) -> int:
        """Return a bit mask of the log directories that any log worker has found broken, by their numbers."""
        words, failed = self.words("failed_dirs"), 0
        for worker in range(self.sizes.log_workers):
            failed |= words.load(worker)
        return failed

    def unshipped_block(self, worker: int) -> memoryview:
        """Return the block in which a log worker, by its number, shows a round to the tier."""
        size = unshipped.block_bytes(self.sizes.partition_slots)
        return self.private.block("unshipped")[worker * size : (worker + 1) * size]

    def unshipped(self, worker: int, life: int) -> Unshipped:
        """Return that block and the shipped word, for the worker. `life` counts its processes."""
        word = self.private.block("shipped")[8 * worker : 8 * (worker + 1)]
        return Unshipped(self.unshipped_block(worker), word, self.doorbell(TIER), life)

    def words(self, name: str) -> Words:
        return Words(self.private.block(name))

    def reset_rings_of(self, index: int) -> None:
        """Empty the rings from and to a process that has died, for its successor. Call it after the fence."""
        for producer, consumer in self._ring_at:
            if index in (producer, consumer):
                self.ring(producer, consumer).reset()

    def close(self) -> None:
        for fd in self.bell_fds:
            os.close(fd)
        self.public_path.unlink(missing_ok=True)


def public_blocks(partition_slots: int) -> list[Block]:
    return [
        Block("counters", PROCESSES * COUNTER_PAGE_BYTES),
        Block("listeners", MAX_LISTENERS * COUNTS_BYTES),
        Block("table", partition_slots * table.slot_bytes(partition_table.PAYLOAD_BYTES), 4096),
        Block("log_dirs", log_sizes.DIRS_BYTES, 4096),
        Block("log_sizes", log_sizes.PARTITION_BYTES * partition_slots, 4096),
        *meters.blocks(PROCESSES, partition_slots),
    ]


def counter_page(public: Region, index: int) -> CounterPage:
    """Return the counter page of a process, for the process or for a reader of the public region."""
    at = index * COUNTER_PAGE_BYTES
    return CounterPage(
        public.block("counters")[at : at + COUNTER_PAGE_BYTES], Counter.COUNTERS, Histogram.HISTOGRAMS
    )


def listener_counts(public: Region, number: int) -> ListenerCounts:
    """Return the counts of a listener, for its acceptor or for a reader of the public region."""
    assert 0 <= number < MAX_LISTENERS
    at = number * COUNTS_BYTES
    return ListenerCounts(public.block("listeners")[at : at + COUNTS_BYTES])


def meter_reader(public: Region) -> Reader:
    """Return a reader of all processes' counts per API, topic and client in the public region."""
    slots = len(public.block("table")) // table.slot_bytes(partition_table.PAYLOAD_BYTES)
    return Reader(public, slots)


def attach_table(public: Region) -> SlotTable:
    """Return the partition table in the public region, for a reader."""
    block = public.block("table")
    return SlotTable(
        block, len(block) // table.slot_bytes(partition_table.PAYLOAD_BYTES), partition_table.PAYLOAD_BYTES
    )
