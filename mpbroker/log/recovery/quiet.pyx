"""Opening a partition that a stop found at rest, natively: of thousands nearly all are, whether the stop was clean or not.

Its files are as a roll, a snapshot or a stop has left them, and if it was not clean nothing lies behind what is durable there: the same comes
of it as of `mpbroker.log.recovery.log_loader`, which does all others. Here files are read and nothing is written: what would be cut, written, removed or
replayed in another segment, and whatever is odd or cannot be read, is left to that. A test opens the same directories both ways.

Where a snapshot is of the log's end, the last entry of `.timeindex` may be that of the stop which wrote it: indexes are synced before a
snapshot is. A recovery after an unclean stop would cut it off, and the next stop write it again.
"""
from libc cimport errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, strcmp, strlen
from posix.fcntl cimport O_CLOEXEC, O_RDONLY, O_RDWR
from posix.unistd cimport close, pread, read

from mpbroker.log.format.index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from mpbroker.log.format.producer_state cimport Producers
from mpbroker.log.partition.state cimport PartitionCore, PartitionState
from mpbroker.records.wire cimport load_u32, load_u64

from mpbroker.log.format import names
from mpbroker.log.partition.batch_checker import check_batches
from mpbroker.log.format.index import sound_entries, sound_times
from mpbroker.log.partition.index_sanity import is_time_of
from mpbroker.log.format.producer_state import SnapshotCorrupt
from mpbroker.log.recovery.producer_history import recall
from mpbroker.log.format.scan import find_offset
from mpbroker.log.recovery.upconvert import begins_old


cdef extern from "<dirent.h>" nogil:
    ctypedef struct DIR
    cdef struct dirent:
        char *d_name

    DIR *opendir(const char *path)
    dirent *readdir(DIR *entries)
    int closedir(DIR *entries)
    int dirfd(DIR *entries)

cdef extern from "<fcntl.h>" nogil:
    int openat(int directory, const char *name, int flags)

cdef extern from "<sys/stat.h>" nogil:
    cdef struct Described "stat":
        int64_t st_size
        uint64_t st_dev

    int fstat(int fd, Described *into)
    int fstatat(int directory, const char *name, Described *into, int flags)

cdef enum:
    DIGITS = 20
    # Of a kind of file. Who has more has others do it.
    MOST = 64
    # What is checked at once, without a sign of life.
    CHECKED_MOST = 1 << 20
    SMALL_BYTES = 64 << 10
    # After a clean stop a larger index is not read, but for its last entry.
    TRUSTED_INDEX_MOST = 4 << 10

assert DIGITS == names.OFFSET_DIGITS

cdef bytes _LOG = names.LOG_SUFFIX.encode(), _INDEX = names.INDEX_SUFFIX.encode(), _TIMES = names.TIME_INDEX_SUFFIX.encode()
cdef bytes _ABORTED = names.TXN_INDEX_SUFFIX.encode(), _SNAPSHOT = names.SNAPSHOT_SUFFIX.encode()
cdef bytes _EPOCHS = names.LEADER_EPOCHS.encode(), _METADATA = names.PARTITION_METADATA.encode()
cdef char *LOG = _LOG
cdef char *INDEX = _INDEX
cdef char *TIMES = _TIMES
cdef char *ABORTED = _ABORTED
cdef char *SNAPSHOT = _SNAPSHOT
cdef char *EPOCHS = _EPOCHS
cdef char *METADATA = _METADATA
cdef tuple _leftovers = tuple([suffix.encode() for suffix in names.LEFTOVER_SUFFIXES])
# What is read of a small file.
cdef uint8_t _small[SMALL_BYTES]


cdef struct Offsets:
    int count
    int64_t at[MOST]        # ascending


cdef struct Files:
    Offsets bases
    Offsets indexes
    Offsets times
    Offsets snapshots


cdef bint add(Offsets *offsets, int64_t offset) noexcept nogil:
    cdef int i = offsets.count
    if i == MOST:
        return False
    while i > 0 and offsets.at[i - 1] > offset:
        offsets.at[i] = offsets.at[i - 1]
        i -= 1
    offsets.at[i] = offset
    offsets.count += 1
    return True


cdef bint same(const Offsets *one, const Offsets *other) noexcept nogil:
    return one.count == other.count and memcmp(one.at, other.at, one.count * sizeof(int64_t)) == 0


cdef bint has(const Offsets *offsets, int64_t offset) noexcept nogil:
    cdef int i
    for i in range(offsets.count):
        if offsets.at[i] == offset:
            return True
    return False


cdef int64_t number(const uint8_t *text, int digits) noexcept nogil:
    """-1 if it is none, or too large."""
    cdef uint64_t value = 0
    cdef int i
    for i in range(digits):
        if not c'0' <= text[i] <= c'9' or value > <uint64_t>(INT64_MAX // 10 - 1):
            return -1
        value = value * 10 + (text[i] - c'0')
    return <int64_t>value


cdef bint ends_in_leftover(const char *name, size_t length):
    return (<bytes>name[:length]).endswith(_leftovers)


cdef bint note(const char *name, Files *files) except? False:
    """False: it is of something that was not finished, or of a transaction, or of no kind that is known."""
    cdef size_t i, length = strlen(name)
    cdef const char *kind = name + DIGITS
    cdef int64_t offset
    for i in range(length):
        if <uint8_t>name[i] >= 0x80:
            return False
    if length > DIGITS and kind[0] == c'.':
        offset = number(<const uint8_t *>name, DIGITS)
        if strcmp(kind, LOG) == 0:
            return offset >= 0 and add(&files.bases, offset)
        if strcmp(kind, INDEX) == 0:
            return offset >= 0 and add(&files.indexes, offset)
        if strcmp(kind, TIMES) == 0:
            return offset >= 0 and add(&files.times, offset)
        if strcmp(kind, SNAPSHOT) == 0:
            return offset >= 0 and add(&files.snapshots, offset)
        if strcmp(kind, ABORTED) == 0:
            return False
    return not ends_in_leftover(name, length)


cdef bint list_files(DIR *entries, Files *files) except? False:
    cdef dirent *entry
    files.bases.count = files.indexes.count = files.times.count = files.snapshots.count = 0
    while True:
        errno.errno = 0
        entry = readdir(entries)
        if entry == NULL:
            break
        if not note(entry.d_name, files):
            return False
    return errno.errno == 0 and files.bases.count > 0 and same(&files.bases, &files.indexes) and same(&files.bases, &files.times)


cdef int64_t read_small(int directory, const char *name) noexcept nogil:
    """How much is in `_small` of it; -1 if it cannot be read, or does not fit."""
    cdef int fd = openat(directory, name, O_RDONLY | O_CLOEXEC)
    cdef ssize_t count
    if fd < 0:
        return -1
    count = read(fd, _small, SMALL_BYTES)
    close(fd)
    return count if count < SMALL_BYTES else -1


cdef void name_into(char *name, int64_t offset, const char *suffix) noexcept nogil:
    snprintf(name, 64, "%020lld%s", <long long>offset, suffix)


cdef bint read_epoch(int directory, int64_t *epoch, int64_t *start) noexcept nogil:
    """The only one that `leader-epoch-checkpoint` has; as it was written, or it is left to others."""
    cdef int64_t count = read_small(directory, EPOCHS)
    cdef int64_t space = 4
    if count < 8 or memcmp(_small, b"0\n1\n", 4) != 0 or _small[count - 1] != c'\n':
        return False
    while space < count and _small[space] != c' ':
        space += 1
    if space == 4 or space - 4 > 9 or count - space < 3 or count - space > DIGITS:
        return False
    epoch[0] = number(_small + 4, <int>(space - 4))
    start[0] = number(_small + space + 1, <int>(count - space - 2))
    return epoch[0] >= 0 and start[0] >= 0


cdef class _Look:
    """At one directory. Each step is False where the partition is none for us."""

    cdef DIR *entries
    cdef int dir, fd, index_fd, times_fd
    cdef Files files
    cdef str directory
    cdef bint is_clean
    cdef int64_t recovery_point, durable, base, size, replay_from, end, epoch, epoch_start, checked_bytes
    cdef PartitionState state

    def __cinit__(self, str directory, known):
        self.dir = self.fd = self.index_fd = self.times_fd = -1
        self.directory = directory
        self.is_clean, self.recovery_point, self.durable = known.clean, known.recovery_point, known.durable
        self.entries = opendir(directory.encode("utf-8", "surrogateescape"))
        if self.entries != NULL:
            self.dir = dirfd(self.entries)

    def __dealloc__(self):
        for fd in (self.fd, self.index_fd, self.times_fd):
            if fd >= 0:
                close(fd)
        if self.entries != NULL:
            closedir(self.entries)

    cdef bint is_of(self, bytes metadata) except? False:
        """Whose names there are few and good, and `partition.metadata` as it should be."""
        cdef int64_t count
        if self.entries == NULL or not list_files(self.entries, &self.files):
            return False
        count = read_small(self.dir, METADATA)
        if count != len(metadata) or memcmp(_small, <char *>metadata, count) != 0:
            return False
        self.base = self.files.bases.at[self.files.bases.count - 1]
        # Segments before the last one are not looked at.
        return self.is_clean or self.files.bases.count == 1 or self.base <= self.recovery_point

    cdef bint open_files(self, uint64_t device) except? False:
        cdef char name[64]
        cdef Described seen
        name_into(name, self.base, LOG)
        self.fd = openat(self.dir, name, O_RDWR | O_CLOEXEC)
        if self.fd < 0 or fstat(self.fd, &seen) != 0 or (not self.is_clean and seen.st_dev != device):
            return False
        self.size = seen.st_size
        return True

    cdef int64_t open_index(self, const char *suffix, int *fd) noexcept nogil:
        """Its size, and with something in it the descriptor; -1 if it cannot be read."""
        cdef char name[64]
        cdef Described seen
        name_into(name, self.base, suffix)
        if fstatat(self.dir, name, &seen, 0) != 0:
            return -1
        if seen.st_size:
            fd[0] = openat(self.dir, name, O_RDONLY | O_CLOEXEC)
            if fd[0] < 0:
                return -1
        return seen.st_size

    cdef bint load_producers(self, int64_t expired_before_ms) except? False:
        """From the newest snapshot that counts, as `recovery` takes it."""
        cdef char name[64]
        cdef int i
        cdef int64_t offset, count, first = self.files.bases.at[0]
        cdef int64_t limit = INT64_MAX if self.is_clean else max(self.recovery_point, self.durable - 1)
        cdef Producers producers = self.state.producers
        self.replay_from = first
        for i in range(self.files.snapshots.count - 1, -1, -1):
            offset = self.files.snapshots.at[i]
            if not first <= offset <= limit:
                continue
            name_into(name, offset, SNAPSHOT)
            count = read_small(self.dir, name)
            if count < 0:
                return False
            try:
                producers.load((<char *>_small)[:count], expired_before_ms)
            except SnapshotCorrupt:
                return False
            if producers.wanting() >= 0:
                bases = [self.files.bases.at[b] for b in range(self.files.bases.count) if self.files.bases.at[b] < offset]
                recall(self.directory, bases, producers)
            self.replay_from = offset
            break
        return self.replay_from >= self.base and producers.first_open() < 0

    cdef bint check(self) except? False:
        """What recovery looks at of the active segment; nothing of its indexes is to be cut or written."""
        cdef int64_t index_size = self.open_index(INDEX, &self.index_fd), times_size = self.open_index(TIMES, &self.times_fd)
        cdef int64_t start = 0, next_offset = self.base, entries, offset, position, times = 0, timestamp = -1, latest = self.base
        cdef int64_t below = INT64_MAX if self.is_clean else min(self.recovery_point, self.replay_from)
        cdef PartitionCore *core
        if index_size < 0 or times_size < 0 or (self.is_clean and index_size > TRUSTED_INDEX_MOST):
            return False
        if index_size:
            entries, offset, position = sound_entries(self.index_fd, self.base, below, self.size)
            if entries * OFFSET_ENTRY_BYTES != index_size:
                return False
            at = find_offset(self.fd, position, self.size, offset)
            if at is None or at.position != position or at.last_offset != offset:
                return False
            if times_size:
                times, timestamp, latest = sound_times(self.times_fd, self.base, offset)
            fds = self.fd, self.index_fd, self.times_fd
            if times and not is_time_of(fds, self.base, [at], timestamp, latest):
                return False
            first = find_offset(self.fd, 0, self.size, self.base)
            self.state.resume_at(
                position, at.base_offset, first.max_timestamp, (entries, offset, position),
                (times, timestamp, latest if times else self.base))
            start, next_offset = position, at.base_offset
        if self.size - start > CHECKED_MOST:
            return False
        checked = check_batches(self.fd, start, self.size, next_offset, self.state, True, self.replay_from, CHECKED_MOST)
        core = self.state.own()
        # Less than all of it: an entry is missing in the index.
        if checked.reason or checked.aborted or core.bytes_since_index != self.size - start:
            return False
        self.end, self.checked_bytes = checked.next_offset, self.size - start
        self.state.finish_rebuilt(self.end)
        return self.has_times(core, times, times_size) and self.is_in_epoch(checked.epochs)

    cdef bint has_times(self, PartitionCore *core, int64_t believed, int64_t size) noexcept nogil:
        """Those that are believed, and perhaps the last one of a segment that was closed: there is a snapshot of its end."""
        cdef uint8_t entry[TIME_ENTRY_BYTES]
        cdef int64_t timestamp, offset
        if size == believed * TIME_ENTRY_BYTES:
            return True
        if size != (believed + 1) * TIME_ENTRY_BYTES or self.replay_from != self.end:
            return False
        if pread(self.times_fd, entry, TIME_ENTRY_BYTES, believed * TIME_ENTRY_BYTES) != TIME_ENTRY_BYTES:
            return False
        timestamp, offset = <int64_t>load_u64(entry), self.base + <int64_t>load_u32(entry + 8)
        if timestamp != core.max_timestamp or offset != core.max_timestamp_offset or timestamp <= core.time_index.last_key:
            return False
        core.time_index.entries += 1
        core.time_index.last_key, core.time_index.last_offset = timestamp, offset
        return True

    cdef bint is_in_epoch(self, list seen) except? False:
        """All batches that were looked at are of the only epoch that was written down. Without one, segments before would tell."""
        for epoch, offset in seen:
            if offset >= self.epoch_start and epoch != self.epoch:
                return False
        return bool(seen) or self.files.bases.count == 1

    cdef bint ends_as_closed(self) noexcept nogil:
        """Where it was when it was closed, with the last time entry, and a snapshot unless it is empty."""
        cdef const PartitionCore *core = self.state.core
        if self.end < self.durable or self.end != self.replay_from or (self.end != self.recovery_point and self.recovery_point > 0):
            return False
        return core.max_timestamp == core.time_index.last_key or self.size == 0

    cdef bint is_whole(self, int64_t log_start) noexcept nogil:
        """It ends where what is durable ends, and nothing is to be removed or written anew."""
        cdef int i
        cdef int64_t start = min(max(self.epoch_start, log_start), self.end)
        if self.end < log_start or start != self.epoch_start or not (self.ends_as_closed() if self.is_clean else self.end == self.durable):
            return False
        for i in range(self.files.snapshots.count):
            if self.files.snapshots.at[i] > self.end:
                return False
            if i < self.files.snapshots.count - 1 and not has(&self.files.bases, self.files.snapshots.at[i]):
                return False
        return True


def opened_at_rest(str directory, bytes metadata, config, known, uint64_t device, int64_t now_ms, count):
    """What `mpbroker.log.recovery.recovered_partition.Opened` has of the partition; None: it is left to `recovery`.

    `metadata`: what its `partition.metadata` should be. `device`: the number of the file system that is synced by now, with all that
    this partition has there; after a clean stop it does not count. `count` is told of bytes checked. Raises OSError, MemoryError.
    """
    cdef _Look look = _Look(directory, known)
    cdef int64_t log_start, i
    if not look.is_of(metadata) or not read_epoch(look.dir, &look.epoch, &look.epoch_start) or not look.open_files(device):
        return None
    sealed = [look.files.bases.at[i] for i in range(look.files.bases.count - 1)]
    for base in sealed:
        if begins_old(directory, base):
            return None
    look.state = PartitionState()
    look.state.configure(config.segment_bytes, 0, config.index_interval_bytes, config.segment_index_bytes, False)
    look.state.open_segment(look.base, look.fd, -1, -1, now_ms)
    log_start = max(<int64_t>known.log_start, look.files.bases.at[0])
    if not look.load_producers(now_ms - <int64_t>known.producer_expiration_ms) or not look.check() or not look.is_whole(log_start):
        return None
    epochs = [(look.epoch, look.epoch_start)]
    if look.is_clean:
        return look.state.carried(), look.state.producers.carried(), log_start, look.end, look.end, sealed, epochs
    count(look.checked_bytes)
    return look.state.carried(), look.state.producers.carried(), log_start, look.recovery_point, -1, sealed, epochs
