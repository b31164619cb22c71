"""Native topic table of the handler's turn. See `topic_table.pxd` for its layout and look-ups."""
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from mpbroker.handlers.hot_path.topic_table cimport (
    GRANT_PROBES, GRANTS, Grant, Index, Place, Topic, grant_place, hash_id, hash_name, topic_by_id,
)
from shm.zeroed cimport zeroed

import os
import struct
from typing import NamedTuple, TYPE_CHECKING

from mpbroker.ipc.topology import log_worker_of_slot

if TYPE_CHECKING:
    from collections.abc import Iterable


cdef void insert(Index *index, uint64_t hashed, Topic *topic) noexcept nogil:
    cdef uint64_t at = hashed & index.mask
    while index.entries[at] != NULL:
        at = (at + 1) & index.mask
    index.entries[at] = topic


cdef void free_topic(Topic *topic) noexcept:
    if topic != NULL:
        free(topic.name)
        free(topic.places)
        free(topic)


cdef int new_index(Index *index, uint64_t size) except -1:
    cdef Topic **entries = <Topic **>zeroed(size, sizeof(Topic *))
    if entries == NULL:
        raise MemoryError(f"no memory for {size} topic index entries")
    free(index.entries)
    index.entries = entries
    index.mask = size - 1
    return 0


class Row(NamedTuple):
    """A topic's data for the turn. `packed`: its `PartitionSlots`. `codec`: -1 for the producer's codec."""

    name: str
    topic_id: bytes
    packed: bytes
    config_version: int
    max_message_bytes: int
    fast: bool
    codec: int
    append_time: bool
    keyed: bool
    before_max_ms: int
    after_max_ms: int


cdef Topic *new_topic(row, int log_workers) except NULL:
    cdef bytes name = row.name.encode(), topic_id = row.topic_id, packed = row.packed
    if len(topic_id) != 16:
        raise ValueError(f"a topic id has 16 bytes, not {len(topic_id)}")
    cdef Topic *topic = <Topic *>calloc(1, sizeof(Topic))
    cdef uint32_t *places = <uint32_t *><char *>packed
    cdef int32_t number, partitions = len(packed) // 8
    if topic == NULL:
        raise MemoryError("no memory for a topic")
    topic.name = <uint8_t *>calloc(len(name) + 1, 1)
    topic.places = <Place *>calloc(partitions + 1, sizeof(Place))
    if topic.name == NULL or topic.places == NULL:
        free_topic(topic)
        raise MemoryError("no memory for a topic")
    memcpy(topic.name, <const char *>name, len(name))
    memcpy(topic.id, <const char *>topic_id, 16)
    topic.name_length, topic.partitions = len(name), partitions
    for number in range(partitions):
        topic.places[number].slot, topic.places[number].generation = (
            places[2 * number], places[2 * number + 1]
        )
        topic.places[number].worker = log_worker_of_slot(places[2 * number], log_workers)
    topic.config_version, topic.max_message_bytes = row.config_version, row.max_message_bytes
    topic.fast, topic.append_time, topic.keyed = row.fast, row.append_time, row.keyed
    topic.codec = row.codec
    topic.before_max_ms, topic.after_max_ms = row.before_max_ms, row.after_max_ms
    return topic


cdef class TopicTable:
    """The topics that Python gives to the turn, and the operations that connections are granted."""

    def __cinit__(self, *_):
        self.ref.key[0], self.ref.key[1] = struct.unpack("=QQ", os.urandom(16))
        new_index(&self.ref.names, 64)
        new_index(&self.ref.ids, 64)

    def __init__(self, int log_workers=1):
        self.log_workers = log_workers

    def __dealloc__(self):
        self._free()
        free(self.ref.names.entries)
        free(self.ref.ids.entries)
        free(self.ref.grants)

    cdef _free(self):
        cdef uint64_t i
        for i in range(self.count):
            free_topic(self.all[i])
        free(self.all)
        self.all = NULL
        self.count = self.room = 0

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        self._free()
        self._reindex()

    def update(self, changed: Iterable[Row] = (), removed: Iterable[bytes] = ()) -> None:
        """Add or replace topics by the rows in `changed`; drop the topics with the ids in `removed`.

        Raises ValueError for a topic id that is not 16 bytes long, MemoryError if memory runs out.
        """
        cdef Topic *topic
        changed = list(changed)
        self._grow(self.count + len(changed))
        try:
            for topic_id in removed:
                self._drop(topic_id)
            for row in changed:
                topic = new_topic(row, self.log_workers)
                self._drop(row.topic_id)
                self.serials += 1
                topic.serial = self.serials
                self.all[self.count] = topic
                self.count += 1
        finally:
            # No index may point to freed memory, even after an error.
            self._reindex()

    cdef _grow(self, uint64_t room):
        cdef Topic **grown
        if room <= self.room:
            return
        grown = <Topic **>realloc(self.all, 2 * room * sizeof(Topic *))
        if grown == NULL:
            raise MemoryError(f"no memory for {room} topics")
        self.all, self.room = grown, 2 * room

    cdef _drop(self, bytes topic_id):
        cdef uint64_t i
        # A walk: the indices are stale while an update is under way.
        for i in range(self.count):
            if memcmp(self.all[i].id, <const char *>topic_id, 16) == 0:
                free_topic(self.all[i])
                self.count -= 1
                self.all[i] = self.all[self.count]
                return

    cdef int _reindex(self) except -1:
        cdef uint64_t i, size = 64
        cdef Topic *topic
        while size < self.count * 3:
            size *= 2
        new_index(&self.ref.names, size)
        new_index(&self.ref.ids, size)
        for i in range(self.count):
            topic = self.all[i]
            insert(&self.ref.names, hash_name(&self.ref, topic.name, topic.name_length), topic)
            insert(&self.ref.ids, hash_id(topic.id), topic)
        return 0

    def place(self, bytes topic_id, int32_t partition) -> tuple[int, int] | None:
        """Return the table's (slot, slot generation) of a partition; None if the partition is unknown."""
        cdef Topic *topic = topic_by_id(&self.ref, <const uint8_t *><const char *>topic_id)
        if topic == NULL or not 0 <= partition < topic.partitions or topic.places[partition].generation == 0:
            return None
        return topic.places[partition].slot, topic.places[partition].generation

    def set_replica_racks(self, racks: Iterable[str]) -> None:
        """Have the turn leave fetches of clients in these racks to Python, and of no others."""
        cdef bytes name
        self.ref.rack_count = 0
        for name in map(str.encode, racks):
            if self.ref.rack_count < RACKS_MAX:
                self.ref.racks[self.ref.rack_count] = hash_name(
                    &self.ref, <const uint8_t *><const char *>name, len(name)
                )
            self.ref.rack_count += 1

    def require_grants(self) -> None:
        """Have the turn serve only requests with a `grant` for each topic from now on. Raises MemoryError."""
        if self.ref.grants == NULL:
            self.ref.grants = <Grant *>zeroed(GRANTS, sizeof(Grant))
            if self.ref.grants == NULL:
                raise MemoryError("no memory for what connections may do")

    def grant(self, uint64_t connection, bytes topic_id, int operation) -> None:
        """Allow a connection an operation (its number in ACLs) on a topic until `revoke_grants` is called."""
        cdef Topic *topic = topic_by_id(&self.ref, <const uint8_t *><const char *>topic_id)
        cdef uint64_t at, i
        cdef Grant *grant
        cdef Grant *free_one = NULL
        if topic == NULL or self.ref.grants == NULL:
            return
        at = grant_place(connection, topic.serial)
        for i in range(GRANT_PROBES):
            grant = &self.ref.grants[(at + i) & (GRANTS - 1)]
            if grant.connection == connection and grant.topic == topic.serial:
                grant.operations |= <uint64_t>1 << operation
                return
            if free_one == NULL and grant.connection == 0:
                free_one = grant
        if free_one == NULL:
            # Its owner asks Python once more.
            free_one = &self.ref.grants[at]
        free_one.connection, free_one.topic = connection, topic.serial
        free_one.operations = <uint64_t>1 << operation

    def revoke_grants(self) -> None:
        """Revoke all grants, because what clients may do has changed."""
        if self.ref.grants != NULL:
            memset(self.ref.grants, 0, GRANTS * sizeof(Grant))
