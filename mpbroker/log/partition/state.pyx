"""State of a partition for Python, which opens, rolls and configures it; the fields are in `state.pxd`."""
cimport cython
import os

from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

from mpbroker.ipc.table cimport (
    PARTITION_DELETED, PARTITION_LIVE, PARTITION_OFFLINE, PartitionSlot,
)
from mpbroker.ipc.table import PartitionFlag, unpack_partition
from mpbroker.storage.index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from shm.table cimport SlotTable, table_write
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpbroker.ipc.table import Partition


cdef enum:
    STATES = PARTITION_LIVE | PARTITION_OFFLINE | PARTITION_DELETED


cdef inline bint is_live(const PartitionCore *core) noexcept nogil:
    return core.slot.flags & STATES == PARTITION_LIVE


cdef void open_index(IndexRef *index, int64_t base, int fd) noexcept nogil:
    index.fd = fd
    index.base = index.last_offset = base
    index.entries = index.refused = 0
    index.last_key = -1


@cython.no_gc
cdef class PartitionState:
    """State of a partition. The fds of segment and indexes are -1 while the partition is dormant (closed)."""

    def __cinit__(self):
        self.core.fd = self.core.index.fd = self.core.time_index.fd = -1
        self.core.first_planned = self.core.last_planned = NOTHING_PLANNED
        self.core.max_timestamp = self.core.first_timestamp = self.core.first_unstable.offset = -1
        self.core.flush_messages = self.core.flush_ms = INT64_MAX
        self.replace_producers(Producers())

    def replace_producers(self, Producers producers) -> None:
        """Use another table of producers."""
        self.producers = producers
        self.core.producers = &producers.ref

    def configure(
        self, int64_t segment_bytes, int64_t segment_ms, int64_t index_interval_bytes, int64_t index_bytes,
        bint append_time, int64_t flush_messages=INT64_MAX, int64_t flush_ms=INT64_MAX,
    ) -> None:
        """Set the topic's settings; `index_bytes` takes effect with the next segment.

        The jitter is already subtracted from `segment_ms`.
        """
        cdef PartitionCore *core = &self.core
        core.segment_bytes = segment_bytes
        core.segment_ms = segment_ms
        core.index_interval_bytes = index_interval_bytes
        core.append_time = append_time
        core.flush_messages, core.flush_ms = flush_messages, flush_ms
        self.index_bytes = index_bytes

    def open_segment(self, int64_t base, int fd, int index_fd, int time_index_fd, int64_t created_ms) -> None:
        """Begin a segment that is empty or about to be replayed, with empty indexes."""
        cdef PartitionCore *core = &self.core
        core.fd = fd
        core.segment_base = base
        core.log_end = max(core.log_end, base)
        core.size = core.bytes_since_index = 0
        core.max_timestamp = core.first_timestamp = -1
        core.max_timestamp_offset = base
        core.created_ms = created_ms
        core.index.room = self.index_bytes // OFFSET_ENTRY_BYTES
        core.time_index.room = self.index_bytes // TIME_ENTRY_BYTES
        open_index(&core.index, base, index_fd)
        open_index(&core.time_index, base, time_index_fd)
        core.index.last_offset = core.index.last_key = base - 1

    def resume_at(
        self, int64_t position, int64_t log_end, int64_t first_timestamp, last_entry: tuple[int, int, int],
        last_time: tuple[int, int, int],
    ) -> None:
        """Resume a cleanly closed segment at its end, or a replay at a batch that has an index entry.

        `last_entry`: the number of entries in `.index`, and the last one's offset and position.
        `last_time`: the number of entries in `.timeindex`, and the last one's timestamp and offset.
        """
        cdef PartitionCore *core = &self.core
        core.size, core.log_end, core.first_timestamp = position, log_end, first_timestamp
        core.index.entries, core.index.last_offset = last_entry[:2]
        core.index.last_key = core.index.last_offset
        core.time_index.entries, core.time_index.last_key, core.time_index.last_offset = last_time
        core.max_timestamp, core.max_timestamp_offset = last_time[1], last_time[2]

    def note_batch(
        self, int64_t last_offset, int64_t position, int64_t length, int64_t max_timestamp,
    ) -> None:
        """Update the state after a batch was written."""
        note_batch(&self.core, last_offset, position, length, max_timestamp)

    cdef bint apply(
        self, int64_t last_offset, int64_t position, int64_t length, int64_t max_timestamp,
    ) noexcept nogil:
        note_batch(&self.core, last_offset, position, length, max_timestamp)
        return True

    def add_index_entry(self, int64_t last_offset, int64_t position) -> bool:
        """Append an entry to `.index`; return whether it was written."""
        return index_add(&self.core.index, last_offset, position)

    def add_time_entry(self, int64_t timestamp, int64_t offset, bint last=False) -> bool:
        """Append an entry to `.timeindex`; return whether it was written."""
        return time_index_add(&self.core.time_index, timestamp, offset, last)

    def finish_rebuilt(self, int64_t next_offset) -> None:
        """End a replay: appends continue at `next_offset`, and the next index interval begins there."""
        cdef PartitionCore *core = &self.core
        core.log_end = next_offset
        core.bytes_since_index = 0

    def end_times(self, last_time: tuple[int, int, int], bint is_final) -> int:
        """Return the number of entries of `.timeindex` to keep after a replay.

        `last_time`: the number of entries in the file, and the last entry's timestamp and offset. The entries
        that the replay made are kept. With `is_final`, one more entry is kept if it is the one that
        `finish_segment` would write. This saves truncations at a start. `is_final`: a snapshot at the log
        end shows that the indexes were synced.
        """
        cdef PartitionCore *core = &self.core
        cdef IndexRef *times = &core.time_index
        if is_final and core.max_timestamp > times.last_key and last_time == (
            times.entries + 1, core.max_timestamp, core.max_timestamp_offset
        ):
            times.entries, times.last_key, times.last_offset = last_time
        return times.entries

    def reopen(self, int fd, int index_fd, int time_index_fd) -> None:
        """Set the files of a partition that was dormant; the rest of its state was kept."""
        cdef PartitionCore *core = &self.core
        core.fd, core.index.fd, core.time_index.fd = fd, index_fd, time_index_fd
        core.appendable = is_live(core)

    def carried(self) -> tuple[int, ...]:
        """Return the state that `carry` loads in another process. Producers are carried separately."""
        cdef PartitionCore *c = &self.core
        return (
            c.segment_base, c.size, c.log_end, c.max_timestamp, c.max_timestamp_offset, c.first_timestamp,
            c.created_ms, c.bytes_since_index, c.index.room, c.index.entries, c.index.last_key,
            c.index.last_offset, c.time_index.room, c.time_index.entries, c.time_index.last_key,
            c.time_index.last_offset,
            c.first_unstable.offset, c.first_unstable.segment_base, c.first_unstable.position,
            c.slot.aborted_end,
        )

    def carry(self, what: tuple[int, ...]) -> None:
        """Load the state of a segment that another process of this program has opened and closed."""
        cdef PartitionCore *c = &self.core
        (
            c.segment_base, c.size, c.log_end, c.max_timestamp, c.max_timestamp_offset, c.first_timestamp,
            c.created_ms, c.bytes_since_index, c.index.room, c.index.entries, c.index.last_key,
            c.index.last_offset, c.time_index.room, c.time_index.entries, c.time_index.last_key,
            c.time_index.last_offset,
            c.first_unstable.offset, c.first_unstable.segment_base, c.first_unstable.position,
            c.slot.aborted_end,
        ) = what
        c.index.base = c.time_index.base = c.segment_base

    def forget_files(self) -> None:
        """Set the descriptors to -1, and keep the turn from appending. The caller closes the files."""
        self.core.fd = self.core.index.fd = self.core.time_index.fd = -1
        self.core.appendable = 0

    def pause(self) -> None:
        """Keep the turn from appending by itself until `resume`."""
        self.core.appendable = 0

    def resume(self) -> None:
        """Let the turn append again, if the partition is live and open."""
        self.core.appendable = is_live(&self.core) and self.core.fd >= 0

    def finish_segment(self) -> None:
        """Append the final time index entry: the segment's largest timestamp."""
        cdef PartitionCore *core = &self.core
        if core.max_timestamp >= 0:
            time_index_add(&core.time_index, core.max_timestamp, core.max_timestamp_offset, True)

    def take_refused(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return (refused, number of entries, last entry's offset) of `.index` and of `.timeindex`.

        `refused` counts the entries refused since the last call because they were not above the last entry.
        """
        cdef PartitionCore *core = &self.core
        taken = (
            (core.index.refused, core.index.entries, core.index.last_offset),
            (core.time_index.refused, core.time_index.entries, core.time_index.last_offset),
        )
        core.index.refused = core.time_index.refused = 0
        return taken

    def roll_due(self, int64_t last_offset, int64_t length, int64_t max_timestamp, int64_t now_ms) -> bool:
        """Return whether a batch must go to a new segment."""
        return roll_due(&self.core, self.core.size, last_offset, length, max_timestamp, now_ms)

    def describe(
        self, uint64_t table_slot, bytes topic_id, int partition, uint32_t generation,
        uint32_t config_version, int leader_epoch, int log_dir, int64_t log_start,
    ) -> None:
        """Set the fields of the partition's table entry, except high watermark and last stable offset.

        Raises ValueError if the topic id does not have 16 bytes.
        """
        cdef PartitionSlot *slot = &self.core.slot
        if len(topic_id) != 16:
            raise ValueError(f"a topic id has 16 bytes, not {len(topic_id)}")
        memcpy(slot.topic_id, <const char *>topic_id, 16)
        self.core.table_slot = table_slot
        slot.partition, slot.generation, slot.config_version = partition, generation, config_version
        self.core.oldest_config_version = config_version
        slot.leader_epoch, slot.log_dir, slot.log_start_offset = leader_epoch, log_dir, log_start

    def all_is_durable(self, int64_t synced) -> None:
        """Move high watermark and last stable offset as far as possible, because all of the log is durable.

        Records below `synced` are in synced segments; later records may be durable in the journal only.
        """
        cdef PartitionCore *core = &self.core
        core.slot.high_watermark = core.covered = end_bound(core)
        core.slot.last_stable = stable_bound(core)
        core.synced = synced
        core.slot.log_end_offset = core.log_end

    def is_shipped_below(self, int64_t offset, int64_t segment_base, int64_t position) -> None:
        """Lower high watermark and last stable offset to what the object store has, if the log has more."""
        cdef PartitionCore *core = &self.core
        if offset >= core.log_end:
            return
        core.slot.high_watermark.offset = offset
        core.slot.high_watermark.segment_base = segment_base
        core.slot.high_watermark.position = position
        if core.slot.last_stable.offset > offset:
            core.slot.last_stable = core.slot.high_watermark

    def keep_marks(self, int64_t high_watermark, int64_t log_end) -> None:
        """Set the published offsets of a partition that is not open, for its next opening."""
        cdef PartitionCore *core = &self.core
        core.slot.high_watermark.offset = core.slot.last_stable.offset = high_watermark
        core.slot.log_end_offset = log_end

    # ---- transactions ----

    def hold_back(self, int64_t offset, int64_t segment_base, int64_t position) -> None:
        """Keep the last stable offset at the start of an open transaction, from the next commit round on.

        The transaction's first batch has the offset `offset`, at `position` of the segment `segment_base`.
        """
        cdef PartitionCore *core = &self.core
        core.first_unstable.offset = offset
        core.first_unstable.segment_base = segment_base
        core.first_unstable.position = position

    def let_go(self) -> None:
        """Stop holding back the last stable offset: no transaction is open."""
        self.core.first_unstable.offset = -1

    def raise_stable(self, int64_t offset) -> None:
        """Raise the last stable offset to the log start `offset`, if an open transaction holds it back.

        The segment and position that are stored with that offset do not change. They may be those of a
        deleted batch, which no consumer reads.
        """
        cdef PartitionCore *core = &self.core
        if core.first_unstable.offset >= 0:
            core.first_unstable.offset = max(core.first_unstable.offset, offset)
            core.slot.last_stable.offset = max(core.slot.last_stable.offset, offset)

    @property
    def first_unstable(self) -> int:
        """Return the first offset of the earliest open transaction; -1 if none is open."""
        return self.core.first_unstable.offset

    @property
    def aborted_end(self) -> int:
        return self.core.slot.aborted_end

    @aborted_end.setter
    def aborted_end(self, int64_t offset):
        self.core.slot.aborted_end = offset

    # ----

    def publish(self, SlotTable table) -> None:
        """Write the partition's slot to the partition table."""
        table_write(&table.ref, self.core.table_slot, &self.core.slot)

    @property
    def published(self) -> Partition:
        return unpack_partition((<uint8_t *>&self.core.slot)[:sizeof(PartitionSlot)])

    @property
    def flags(self) -> PartitionFlag:
        """Return whether the partition is live, offline, deleted."""
        return PartitionFlag(self.core.slot.flags & STATES)

    @flags.setter
    def flags(self, int flags):
        cdef PartitionCore *core = &self.core
        core.slot.flags = flags | (core.slot.flags & ~STATES)
        core.appendable = is_live(core) and core.fd >= 0

    @property
    def tiering(self) -> PartitionFlag:
        """Return how the topic's settings tier the partition: a combination of the other flags."""
        return PartitionFlag(self.core.slot.flags & ~STATES)

    @tiering.setter
    def tiering(self, int flags):
        self.core.slot.flags = flags | (self.core.slot.flags & STATES)

    @property
    def is_offline(self) -> bool:
        return bool(self.core.slot.flags & PARTITION_OFFLINE)

    @property
    def config_version(self) -> int:
        return self.core.slot.config_version

    @config_version.setter
    def config_version(self, uint32_t version):
        self.core.slot.config_version = version

    @property
    def oldest_config_version(self) -> int:
        return self.core.oldest_config_version

    @oldest_config_version.setter
    def oldest_config_version(self, uint32_t version):
        self.core.oldest_config_version = version

    @property
    def table_slot(self) -> int:
        return self.core.table_slot

    @property
    def generation(self) -> int:
        return self.core.slot.generation

    @property
    def log_dir(self) -> int:
        return self.core.slot.log_dir

    @property
    def leader_epoch(self) -> int:
        return self.core.slot.leader_epoch

    @property
    def log_start(self) -> int:
        return self.core.slot.log_start_offset

    @log_start.setter
    def log_start(self, int64_t offset):
        self.core.slot.log_start_offset = offset

    @property
    def high_watermark(self) -> int:
        return self.core.slot.high_watermark.offset

    @property
    def synced(self) -> int:
        return self.core.synced

    @property
    def fd(self) -> int:
        return self.core.fd

    @property
    def index_fds(self) -> tuple[int, int]:
        return self.core.index.fd, self.core.time_index.fd

    @property
    def segment_base(self) -> int:
        return self.core.segment_base

    @property
    def size(self) -> int:
        return self.core.size

    @property
    def log_end(self) -> int:
        return self.core.log_end

    @property
    def max_timestamp(self) -> int:
        return self.core.max_timestamp

    @property
    def first_timestamp(self) -> int:
        return self.core.first_timestamp

    @property
    def segment_bytes(self) -> int:
        return self.core.segment_bytes

    @property
    def append_time(self) -> bool:
        return bool(self.core.append_time)

    @property
    def can_rest(self) -> bool:
        """Return whether no bytes wait for a sync, so that the files can be closed until the next append."""
        return nothing_waits(&self.core)

    def cut_back(self) -> None:
        """Remove a failed write's bytes, and have the next commit round sync the segment. Raises OSError."""
        cdef PartitionCore *core = &self.core
        core.syncs_itself = 1
        os.ftruncate(core.fd, core.size)

    @property
    def unsynced(self) -> bool:
        return bool(self.core.unsynced or self.core.in_flight)

    @property
    def max_timestamp_offset(self) -> int:
        return self.core.max_timestamp_offset
