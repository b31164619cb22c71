"""Encodes columns of Arrow's layout into record batches: the reverse of arrow.pyx.

Each row goes to a target: a partition of a topic, numbered by the caller. A target leaves room for a batch
header and collects records after it. A target that has batch_bytes is full: the caller gets the records, then
compresses, seals and sends them. Buffers are given by their addresses, and the caller keeps them alive.
"""

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from mpbroker.records cimport batch as c

from typing import NamedTuple, TYPE_CHECKING

if TYPE_CHECKING:
    from mpbroker.records.addresses import Binary, Headers, Numbers

cdef enum:
    FIELD_BYTES_MAX = 10  # of a varlong

cdef enum:
    HAS_NO_TOPIC = -1
    HAS_NO_SUCH_PARTITION = -2

# Written by assign_targets for a row without a target.
NO_TOPIC = HAS_NO_TOPIC
NO_SUCH_PARTITION = HAS_NO_SUCH_PARTITION

cdef uint32_t _SEED = 0x9747b28c
cdef uint32_t _MULTIPLIER = 0x5bd1e995


class Encoded(NamedTuple):
    """The records of a batch, after BATCH_HEADER_BYTES for the header, and values for that header."""

    target: int
    data: bytearray
    records: int
    base_timestamp: int
    max_timestamp: int


cdef struct BinarySource:
    const uint8_t *validity
    const int32_t *offsets
    const uint8_t *data
    int64_t first  # the row from which all three are read
    bint given


cdef struct Target:
    uint8_t *data
    int64_t capacity
    int64_t used
    int64_t base_timestamp
    int64_t max_timestamp
    int32_t count


cdef BinarySource _binary(object column):
    """Return a BinarySource for a `Binary` of `mpbroker.records.addresses`; None means a column of nulls."""
    cdef BinarySource source
    source.given = column is not None
    source.validity = source.data = NULL
    source.offsets = NULL
    source.first = 0
    if source.given:
        source.validity = <const uint8_t *><uintptr_t>column[0]
        source.offsets = <const int32_t *><uintptr_t>column[1]
        source.data = <const uint8_t *><uintptr_t>column[2]
        source.first = column[3]
    return source


cdef inline bint _is_valid(const uint8_t *validity, int64_t at) noexcept nogil:
    return validity == NULL or (validity[at >> 3] >> (at & 7)) & 1


cdef inline int64_t _field(const BinarySource *source, int64_t row, const uint8_t **field) noexcept nogil:
    """Return the number of bytes in a row, -1 for null, and point `field` at these bytes."""
    cdef int64_t at = source.first + row
    if not source.given or not _is_valid(source.validity, at):
        return -1
    field[0] = source.data + source.offsets[at]
    return source.offsets[at + 1] - source.offsets[at]


cdef inline uint8_t *_write(uint8_t *p, const uint8_t *field, int64_t size) noexcept nogil:
    p = c.write_varlong(p, size)
    if size > 0:
        memcpy(p, field, size)
        p += size
    return p


cdef inline int64_t _bytes_of(int64_t size) noexcept nogil:
    return c.varlong_bytes(size) + (size if size > 0 else 0)


cdef uint32_t _murmur2(const uint8_t *data, int64_t size) noexcept nogil:
    cdef uint32_t state = _SEED ^ <uint32_t>size
    cdef uint32_t word
    cdef int64_t i
    for i in range(size >> 2):
        memcpy(&word, data + 4 * i, 4)
        word *= _MULTIPLIER
        word = (word ^ (word >> 24)) * _MULTIPLIER
        state = (state * _MULTIPLIER) ^ word
    if size & 3:
        word = 0
        memcpy(&word, data + (size & ~3), size & 3)
        state = (state ^ word) * _MULTIPLIER
    state = (state ^ (state >> 13)) * _MULTIPLIER
    return state ^ (state >> 15)


def murmur2(const uint8_t[::1] data) -> int:
    """Return Kafka's variant of MurmurHash2, as an unsigned 32-bit number (Kafka: Utils.murmur2)."""
    return _murmur2(&data[0] if data.shape[0] else NULL, data.shape[0])


def assign_targets(
    int64_t rows, topics: Numbers | None, const int32_t[::1] first_targets,
    const int32_t[::1] partition_counts,
    const int32_t[::1] keyless, key: Binary | None, partitions: Numbers | None, int32_t[::1] targets
) -> int:
    """Fill `targets` with each row's target, as Kafka's default partitioner chooses it.

    A row goes to the partition that it names, else to its key's, else to the one in `keyless`. A topic is an
    index into first_targets, partition_counts and keyless. topics and partitions are int32 columns. Return
    the first row without a target, or -1; the row's entry in `targets` is NO_TOPIC or NO_SUCH_PARTITION.
    """
    cdef BinarySource keys = _binary(key)
    cdef const uint8_t *topic_validity = NULL
    cdef const uint8_t *partition_validity = NULL
    cdef const int32_t *topic_values = NULL
    cdef const int32_t *partition_values = NULL
    cdef int64_t first_topic = 0, first_partition = 0, row, size, bad = -1
    cdef int32_t topic = 0, partition, count
    cdef const uint8_t *field = NULL
    if topics is not None:
        topic_validity = <const uint8_t *><uintptr_t>topics[0]
        topic_values = <const int32_t *><uintptr_t>topics[1]
        first_topic = topics[2]
    if partitions is not None:
        partition_validity = <const uint8_t *><uintptr_t>partitions[0]
        partition_values = <const int32_t *><uintptr_t>partitions[1]
        first_partition = partitions[2]
    with nogil:
        for row in range(rows):
            if topic_values != NULL:
                if not _is_valid(topic_validity, first_topic + row):
                    targets[row] = HAS_NO_TOPIC
                    bad = row
                    break
                topic = topic_values[first_topic + row]
            count = partition_counts[topic]
            if partition_values != NULL and _is_valid(partition_validity, first_partition + row):
                partition = partition_values[first_partition + row]
                if partition < 0 or partition >= count:
                    targets[row] = HAS_NO_SUCH_PARTITION
                    bad = row
                    break
            else:
                size = _field(&keys, row, &field)
                partition = keyless[topic] if size < 0 else <int32_t>(
                    (_murmur2(field, size) & 0x7fffffff) % <uint32_t>count
                )
            targets[row] = first_targets[topic] + partition
    return bad


cdef class Encoder:
    """An encoder of records for many partitions. It buffers at most about batch_bytes for each partition."""

    cdef Target *targets
    cdef int32_t target_count
    cdef int64_t batch_bytes
    cdef BinarySource key
    cdef BinarySource value
    cdef BinarySource header_key
    cdef BinarySource header_value
    cdef BinarySource header_lists
    cdef const uint8_t *entry_validity
    cdef int64_t first_entry

    def __cinit__(self, int64_t batch_bytes):
        self.targets = NULL
        self.target_count = 0
        self.batch_bytes = batch_bytes

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.target_count):
            free(self.targets[i].data)
        free(self.targets)

    def append(
        self, const int32_t[::1] targets, key: Binary | None, value: Binary | None,
        timestamps: Numbers | None, int64_t now_ms, headers: Headers | None = None
    ) -> list[Encoded]:
        """Encode each row for its target in `targets`. Return full batches in the order of filling.

        `mpbroker.records.addresses` describes the columns; None is a column of nulls. timestamps are in
        microseconds, and now_ms replaces a null. Raises ValueError for a header without a key.
        """
        cdef int64_t rows = targets.shape[0], row, first_time = 0, ms
        cdef const uint8_t *time_validity = NULL
        cdef const int64_t *times = NULL
        cdef Target *target
        full = []
        self.key, self.value = _binary(key), _binary(value)
        self._take_headers(headers)
        if timestamps is not None:
            time_validity = <const uint8_t *><uintptr_t>timestamps[0]
            times = <const int64_t *><uintptr_t>timestamps[1]
            first_time = timestamps[2]
        for row in range(rows):
            if targets[row] >= self.target_count:
                self._make_targets(targets[row] + 1)
        with nogil:
            for row in range(rows):
                ms = now_ms
                if times != NULL and _is_valid(time_validity, first_time + row):
                    ms = times[first_time + row]
                    ms = ms // 1000 - (1 if ms % 1000 < 0 else 0)
                target = &self.targets[targets[row]]
                self._add(target, row, ms)
                if target.used >= self.batch_bytes:
                    with gil:
                        full.append(self._taken(targets[row]))
        return full

    def finish(self) -> list[Encoded]:
        """Return the remaining batches, which are not full."""
        return [self._taken(index) for index in range(self.target_count) if self.targets[index].count]

    cdef void _take_headers(self, headers):
        self.header_lists.given = headers is not None
        if headers is None:
            return
        validity, lists, first, entry_validity, first_entry, key, value = headers
        self.header_lists = _binary((validity, lists, 0, first))
        self.entry_validity = <const uint8_t *><uintptr_t>entry_validity
        self.first_entry = first_entry
        self.header_key, self.header_value = _binary(key), _binary(value)

    cdef int _make_targets(self, int32_t count) except -1:
        cdef Target *made = <Target *>calloc(count, sizeof(Target))
        if made == NULL:
            raise MemoryError()
        if self.target_count:
            memcpy(made, self.targets, self.target_count * sizeof(Target))
        free(self.targets)
        self.targets = made
        self.target_count = count
        return 0

    cdef object _taken(self, int32_t index):
        cdef Target *target = &self.targets[index]
        data = PyByteArray_FromStringAndSize(<const char *>target.data, target.used)
        taken = Encoded(index, data, target.count, target.base_timestamp, target.max_timestamp)
        target.used = target.count = 0
        return taken

    cdef int64_t _header_bytes(self, int64_t start, int64_t stop) noexcept nogil:
        """Return the encoded size of the headers [start, stop) in bytes; -1 if a header has no key."""
        cdef int64_t size = 0, key_bytes, i
        cdef const uint8_t *field = NULL
        for i in range(start, stop):
            key_bytes = _field(&self.header_key, i, &field)
            if key_bytes < 0 or not _is_valid(self.entry_validity, self.first_entry + i):
                return -1
            size += _bytes_of(key_bytes) + _bytes_of(_field(&self.header_value, i, &field))
        return size

    cdef int _add(self, Target *target, int64_t row, int64_t ms) except -1 nogil:
        """Append a row's record to the target. Raises ValueError for a header without a key, MemoryError."""
        cdef const uint8_t *key = NULL
        cdef const uint8_t *value = NULL
        cdef int64_t key_bytes = _field(&self.key, row, &key)
        cdef int64_t value_bytes = _field(&self.value, row, &value)
        cdef int64_t start = 0, stop = 0, delta, size, header_bytes = 0, at, i
        cdef uint8_t *p
        if self.header_lists.given:
            at = self.header_lists.first + row
            if _is_valid(self.header_lists.validity, at):
                start, stop = self.header_lists.offsets[at], self.header_lists.offsets[at + 1]
                header_bytes = self._header_bytes(start, stop)
                if header_bytes < 0:
                    with gil:
                        raise ValueError("Null header keys are not permitted")
        if target.count == 0:
            target.used = c.BATCH_HEADER_BYTES
            target.base_timestamp = ms
            target.max_timestamp = c.NO_TIMESTAMP
        delta = c.subtract_wrapping(ms, target.base_timestamp)
        size = 1 + c.varlong_bytes(delta) + c.varlong_bytes(target.count)
        size += _bytes_of(key_bytes) + _bytes_of(value_bytes) + c.varlong_bytes(stop - start) + header_bytes
        self._reserve(target, size + FIELD_BYTES_MAX)
        p = c.write_varlong(target.data + target.used, size)
        p[0] = 0
        p = c.write_varlong(c.write_varlong(p + 1, delta), target.count)
        p = _write(_write(p, key, key_bytes), value, value_bytes)
        p = c.write_varlong(p, stop - start)
        for i in range(start, stop):
            size = _field(&self.header_key, i, &key)
            p = _write(p, key, size)
            size = _field(&self.header_value, i, &value)
            p = _write(p, value, size)
        target.used = p - target.data
        target.count += 1
        if ms > target.max_timestamp:
            target.max_timestamp = ms
        return 0

    cdef int _reserve(self, Target *target, int64_t size) except -1 nogil:
        cdef int64_t wanted
        cdef uint8_t *grown
        if target.used + size <= target.capacity:
            return 0
        wanted = max(2 * target.capacity, target.used + size, 4096)
        grown = <uint8_t *>realloc(target.data, wanted)
        if grown == NULL:
            with gil:
                raise MemoryError()
        target.data = grown
        target.capacity = wanted
        return 0
