"""A partition's state for Python: opened, rolled and configured here, appended to by the turn. `state.pxd` draws it."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from mpbroker.ipc.table cimport PARTITION_LIVE, PartitionSlot
from mpbroker.ipc.table import PartitionFlag, unpack_partition
from mpbroker.log.index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from mpbroker.log.index import read_offset_entries, read_time_entries
from shm.table cimport SlotTable, table_write


cdef void open_index(IndexRef *index, int64_t base, int fd) noexcept nogil:
    index.fd = fd
    index.base = index.last_offset = base
    index.entries = 0
    index.last_key = -1


cdef class PartitionState:
    """Owns the fds of the active segment and of its indexes."""

    def __cinit__(self):
        memset(&self.core, 0, sizeof(self.core))
        self.core.fd = self.core.index.fd = self.core.time_index.fd = -1
        self.core.first_planned = self.core.last_planned = NOTHING_PLANNED
        self.core.max_timestamp = self.core.first_timestamp = self.core.held_back.offset = -1
        self.replace_producers(Producers())

    def replace_producers(self, Producers producers) -> None:
        self.producers = producers
        self.core.producers = &producers.ref

    def configure(
        self, int64_t segment_bytes, int64_t segment_ms, int64_t index_interval_bytes, int64_t index_bytes, bint append_time,
    ) -> None:
        """`segment_ms` without the jitter; the size of indexes counts from the next segment on."""
        self.core.segment_bytes = segment_bytes
        self.core.segment_ms = segment_ms
        self.core.index_interval_bytes = index_interval_bytes
        self.core.append_time = append_time
        self.index_bytes = index_bytes

    def open_segment(self, int64_t base, int fd, int index_fd, int time_index_fd, int64_t created_ms) -> None:
        """A segment that is empty, or about to be replayed: nothing is in its indexes."""
        self.core.fd = fd
        self.core.segment_base = base
        self.core.log_end = max(self.core.log_end, base)
        self.core.size = self.core.bytes_since_index = 0
        self.core.max_timestamp = self.core.first_timestamp = -1
        self.core.max_timestamp_offset = base
        self.core.created_ms = created_ms
        self.core.index.room = self.index_bytes // OFFSET_ENTRY_BYTES
        self.core.time_index.room = self.index_bytes // TIME_ENTRY_BYTES
        open_index(&self.core.index, base, index_fd)
        open_index(&self.core.time_index, base, time_index_fd)
        self.core.index.last_offset = self.core.index.last_key = base - 1

    def resume_segment(self, int64_t size, int64_t log_end, int64_t first_timestamp, index_path, time_index_path) -> None:
        """What was closed cleanly goes on: sizes and the last entries are as they were found."""
        self.core.size = size
        self.core.log_end = log_end
        self.core.first_timestamp = first_timestamp
        entries = read_offset_entries(index_path, self.core.segment_base)
        self.core.index.entries = len(entries)
        if entries:
            self.core.index.last_key = self.core.index.last_offset = entries[len(entries) - 1][0]
        times = read_time_entries(time_index_path, self.core.segment_base)
        self.core.time_index.entries = len(times)
        if times:
            self.core.time_index.last_key, self.core.time_index.last_offset = times[len(times) - 1]
            self.core.max_timestamp, self.core.max_timestamp_offset = times[len(times) - 1]

    def resume_at(
        self, int64_t position, int64_t log_end, int64_t first_timestamp, tuple last_entry, tuple last_time,
    ) -> None:
        """A replay begins at this batch, to which the index has an entry: (entries, last offset), (entries, timestamp, offset)."""
        self.core.size, self.core.log_end, self.core.first_timestamp = position, log_end, first_timestamp
        self.core.index.entries, self.core.index.last_offset = last_entry
        self.core.index.last_key = self.core.index.last_offset
        self.core.time_index.entries, self.core.time_index.last_key, self.core.time_index.last_offset = last_time
        self.core.max_timestamp, self.core.max_timestamp_offset = last_time[1], last_time[2]

    def note_batch(self, int64_t last_offset, int64_t position, int64_t length, int64_t max_timestamp) -> None:
        note_batch(&self.core, last_offset, position, length, max_timestamp)

    cdef bint apply(self, int64_t last_offset, int64_t position, int64_t length, int64_t max_timestamp) noexcept nogil:
        note_batch(&self.core, last_offset, position, length, max_timestamp)
        return True

    def add_index_entry(self, int64_t last_offset, int64_t position) -> bool:
        return index_add(&self.core.index, last_offset, position)

    def add_time_entry(self, int64_t timestamp, int64_t offset, bint last=False) -> bool:
        return time_index_add(&self.core.time_index, timestamp, offset, last)

    def finish_rebuilt(self, int64_t next_offset) -> None:
        """After a replay: appends go on at this offset, and count towards the next index entry from here."""
        self.core.log_end = next_offset
        self.core.bytes_since_index = 0

    def reopen(self, int fd, int index_fd, int time_index_fd) -> None:
        """The segment's files after a rest: everything else is known."""
        self.core.fd, self.core.index.fd, self.core.time_index.fd = fd, index_fd, time_index_fd
        self.core.appendable = self.core.slot.flags == PARTITION_LIVE

    def carried(self) -> tuple:
        """What `carry` needs in another process, to go on where this one was; producers have their own."""
        cdef PartitionCore *c = &self.core
        return (
            c.segment_base, c.size, c.log_end, c.max_timestamp, c.max_timestamp_offset, c.first_timestamp, c.created_ms,
            c.bytes_since_index, c.index.room, c.index.entries, c.index.last_key, c.index.last_offset,
            c.time_index.room, c.time_index.entries, c.time_index.last_key, c.time_index.last_offset,
            c.held_back.offset, c.held_back.segment_base, c.held_back.position, c.slot.aborted_end,
        )

    def carry(self, tuple what) -> None:
        """A segment that another process of this program has opened and closed."""
        cdef PartitionCore *c = &self.core
        (
            c.segment_base, c.size, c.log_end, c.max_timestamp, c.max_timestamp_offset, c.first_timestamp, c.created_ms,
            c.bytes_since_index, c.index.room, c.index.entries, c.index.last_key, c.index.last_offset,
            c.time_index.room, c.time_index.entries, c.time_index.last_key, c.time_index.last_offset,
            c.held_back.offset, c.held_back.segment_base, c.held_back.position, c.slot.aborted_end,
        ) = what
        c.index.base = c.time_index.base = c.segment_base

    def forget_files(self) -> None:
        """They are closed."""
        self.core.fd = self.core.index.fd = self.core.time_index.fd = -1
        self.core.appendable = 0

    def hold(self) -> None:
        """The turn appends nothing by itself until `release`."""
        self.core.appendable = 0

    def release(self) -> None:
        self.core.appendable = self.core.slot.flags == PARTITION_LIVE and self.core.fd >= 0

    def finish_segment(self) -> None:
        """The final time index entry: what is last in it is the segment's largest timestamp."""
        if self.core.max_timestamp >= 0:
            time_index_add(&self.core.time_index, self.core.max_timestamp, self.core.max_timestamp_offset, True)

    def roll_due(self, int64_t last_offset, int64_t length, int64_t max_timestamp, int64_t now_ms) -> bool:
        return roll_due(&self.core, self.core.size, last_offset, length, max_timestamp, now_ms)

    def describe(
        self, uint64_t table_slot, bytes topic_id, int partition, uint32_t generation, uint32_t config_version, int leader_epoch,
        int log_dir, int64_t log_start,
    ) -> None:
        """What the partition table is to say; both marks stand at `high_watermark` until moved."""
        cdef PartitionSlot *slot = &self.core.slot
        if len(topic_id) != 16:
            raise ValueError(f"a topic id has 16 bytes, not {len(topic_id)}")
        memcpy(slot.topic_id, <const char *>topic_id, 16)
        self.core.table_slot = table_slot
        slot.partition, slot.generation, slot.config_version = partition, generation, config_version
        self.core.oldest_config_version = config_version
        slot.leader_epoch, slot.log_dir, slot.log_start_offset = leader_epoch, log_dir, log_start

    def all_is_durable(self, int64_t synced) -> None:
        """High watermark and last stable offset move as far as they can; what lies below `synced` is in segments that were synced."""
        self.core.slot.high_watermark = self.core.covered = end_bound(&self.core)
        self.core.slot.last_stable = self.core.stable = stable_bound(&self.core)
        self.core.synced = synced
        self.core.slot.log_end_offset = self.core.log_end

    def keep_marks(self, int64_t high_watermark, int64_t log_end) -> None:
        """What was said of a partition that is not open: its offsets, for whoever opens it."""
        self.core.slot.high_watermark.offset = self.core.slot.last_stable.offset = high_watermark
        self.core.slot.log_end_offset = log_end

    # ---- transactions ----

    def hold_back(self, int64_t offset, int64_t segment_base, int64_t position) -> None:
        """The earliest open transaction begins here: what is durable is stable up to this batch, from the next commit round on."""
        self.core.held_back.offset = offset
        self.core.held_back.segment_base = segment_base
        self.core.held_back.position = position

    def let_go(self) -> None:
        """No transaction is open."""
        self.core.held_back.offset = -1

    def raise_stable(self, int64_t offset) -> None:
        """The log starts here: what is held back is so from here on, if it began before. Nothing is read below, so that the
        place may stay that of the batch which is gone."""
        if self.core.held_back.offset >= 0:
            self.core.held_back.offset = max(self.core.held_back.offset, offset)
            self.core.stable.offset = max(self.core.stable.offset, offset)
            self.core.slot.last_stable.offset = max(self.core.slot.last_stable.offset, offset)

    @property
    def held_back(self):
        """Where the earliest open transaction begins, -1 without one."""
        return self.core.held_back.offset

    @property
    def aborted_end(self):
        return self.core.slot.aborted_end

    @aborted_end.setter
    def aborted_end(self, int64_t offset):
        self.core.slot.aborted_end = offset

    # ----

    def publish(self, SlotTable table) -> None:
        table_write(&table.ref, self.core.table_slot, &self.core.slot)

    @property
    def published(self):
        return unpack_partition((<uint8_t *>&self.core.slot)[:sizeof(PartitionSlot)])

    @property
    def flags(self):
        return PartitionFlag(self.core.slot.flags)

    @flags.setter
    def flags(self, int flags):
        self.core.slot.flags = flags
        self.core.appendable = flags == PartitionFlag.PARTITION_LIVE and self.core.fd >= 0

    @property
    def config_version(self):
        return self.core.slot.config_version

    @config_version.setter
    def config_version(self, uint32_t version):
        self.core.slot.config_version = version

    @property
    def oldest_config_version(self):
        return self.core.oldest_config_version

    @oldest_config_version.setter
    def oldest_config_version(self, uint32_t version):
        self.core.oldest_config_version = version

    @property
    def table_slot(self):
        return self.core.table_slot

    @property
    def generation(self):
        return self.core.slot.generation

    @property
    def log_dir(self):
        return self.core.slot.log_dir

    @property
    def leader_epoch(self):
        return self.core.slot.leader_epoch

    @property
    def log_start(self):
        return self.core.slot.log_start_offset

    @log_start.setter
    def log_start(self, int64_t offset):
        self.core.slot.log_start_offset = offset

    @property
    def high_watermark(self):
        return self.core.slot.high_watermark.offset

    @property
    def synced(self):
        return self.core.synced

    @property
    def fd(self):
        return self.core.fd

    @property
    def index_fds(self):
        return self.core.index.fd, self.core.time_index.fd

    @property
    def segment_base(self):
        return self.core.segment_base

    @property
    def size(self):
        return self.core.size

    @property
    def log_end(self):
        return self.core.log_end

    @property
    def max_timestamp(self):
        return self.core.max_timestamp

    @property
    def first_timestamp(self):
        return self.core.first_timestamp

    @property
    def segment_bytes(self):
        return self.core.segment_bytes

    @property
    def append_time(self):
        return bool(self.core.append_time)

    @property
    def bytes_since_index(self):
        return self.core.bytes_since_index

    @property
    def index_interval_bytes(self):
        return self.core.index_interval_bytes

    @property
    def can_rest(self):
        """Whether nothing of it waits for a sync: its files may be closed until they are needed again."""
        return not (self.core.unsynced or self.core.in_flight or self.core.is_behind or self.core.first_planned != NOTHING_PLANNED)

    @property
    def unsynced(self):
        return bool(self.core.unsynced or self.core.in_flight)

    def advance(self, int64_t last_offset, int64_t length, int64_t max_timestamp, bint indexed) -> None:
        """The Python reference's `note_batch`: the caller has decided about the index entry."""
        if self.core.size == 0:
            self.core.first_timestamp = max_timestamp
        if indexed:
            self.core.bytes_since_index = 0
        self.core.bytes_since_index += length
        self.core.size += length
        self.core.log_end = last_offset + 1

    def raise_max_timestamp(self, int64_t timestamp, int64_t offset) -> None:
        self.core.max_timestamp, self.core.max_timestamp_offset = timestamp, offset

    @property
    def max_timestamp_offset(self):
        return self.core.max_timestamp_offset
