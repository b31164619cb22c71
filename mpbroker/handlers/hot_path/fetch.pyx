"""Native path of the hot Fetch. See `fetch.pxd` for what it covers."""
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from mpbroker.handlers.hot_path.session_table cimport (
    CachedPartition, Session, SessionsRef, move_to_end, session_by_id,
)
from mpbroker.handlers.hot_path.topic_table cimport (
    MAY_READ, Topic, TopicsRef, is_granted, has_replicas, topic_by_id, topic_by_name,
)
from mpbroker.handlers.hot_path.wire cimport (
    Cursor, put_count, put_uvarint, skip_tags, take, take_length, take_u32, take_u64, take_uvarint,
)
from mpbroker.ipc.fetch_sessions cimport FINAL_FETCH, FULL_FETCH, SessionOfFetch, epoch_after
from mpbroker.ipc.slots cimport PART_BYTES, PART_FILE, SEND, SEND_PARTS, Part, ReplySlot, RequestSlot
from mpbroker.ipc.table cimport PARTITION_LIVE, PARTITION_OFFLINE, Bound, PartitionSlot
from mpbroker.records.batch cimport BATCH_HEADER_BYTES
from mpbroker.records.wire cimport store_u16, store_u32, store_u64
from mpbroker.handlers.hot_path.fetch_positions cimport (
    PlacesRef, Reader, Segment, Spot, first_batch_bytes, is_damaged, is_warm, locate, reader_of, remember,
)
from shm.arena cimport block_capacity
from shm.table cimport TableRef, table_read

cdef enum:
    # First version that has the field.
    LOG_START = 5
    SESSIONS = 7
    LEADER_EPOCH = 9
    RACK = 11
    FLEXIBLE = 12               # also the first with last_fetched_epoch
    TOPIC_IDS = 13
    REPLICA_STATE = 15          # replica_id no longer comes first
    READ_COMMITTED = 1
    ANY_EPOCH = -1
    SLICES_MAX = 16
    PARTITION_BYTES_MAX = 64    # of a partition's answer without its records

cdef struct Wanted:
    int32_t partition
    int32_t leader_epoch
    int64_t offset
    int32_t last_fetched_epoch
    int32_t bytes_max

cdef struct Sliced:
    Segment *segment
    uint32_t slot
    uint32_t generation
    int64_t position
    uint32_t length
    uint32_t lead_bytes         # of the response, before the slice

cdef struct Answer:
    uint8_t *start              # of the response frame
    uint8_t *at
    uint8_t *end                # of the block
    int version
    int8_t isolation
    int64_t bytes_max           # left for records
    uint64_t total              # bytes of records
    bint settled                # a newer segment follows: waiting would add nothing
    uint32_t slices
    Sliced sliced[SLICES_MAX]
    FetchCounts *counts
    Session *session            # NULL: a full fetch

# A change of a partition in the session, made when a fetch is answered.
cdef struct Change:
    uint32_t place
    bint asked                  # the request named this partition
    Wanted wanted
    int64_t high_watermark
    int64_t log_start_offset
    bint records

cdef struct Changes:
    uint32_t count
    Change partitions[SLICES_MAX]


cdef inline bint take_partition(Cursor *c, int version, Wanted *wanted) noexcept nogil:
    wanted.partition = <int32_t>take_u32(c)
    wanted.leader_epoch = <int32_t>take_u32(c) if version >= LEADER_EPOCH else ANY_EPOCH
    wanted.offset = <int64_t>take_u64(c)
    wanted.last_fetched_epoch = <int32_t>take_u32(c) if version >= FLEXIBLE else -1
    if version >= LOG_START:
        take_u64(c)             # log_start_offset of a follower; a consumer sends -1
    wanted.bytes_max = <int32_t>take_u32(c)
    if version >= FLEXIBLE:
        skip_tags(c)
    return c.at != NULL


cdef bint may_read(const Wanted *wanted, const PartitionSlot *now) noexcept nogil:
    """Return True if the partition's state, the offset and the epochs allow the read."""
    if not now.flags & PARTITION_LIVE or now.flags & PARTITION_OFFLINE:
        return False
    if wanted.leader_epoch != ANY_EPOCH and wanted.leader_epoch != now.leader_epoch:
        return False
    if wanted.offset < now.log_start_offset or wanted.offset > now.log_end_offset:
        return False
    return wanted.last_fetched_epoch < 0 or wanted.last_fetched_epoch == now.leader_epoch


cdef inline bint slice_of(
    PlacesRef *places, uint32_t slot, uint32_t generation, uint32_t log_dir, const Wanted *wanted,
    const Bound *bound, Answer *answer
) noexcept nogil:
    """Add the partition's slice, if any, to the answer. Return False to leave the fetch to the slow path."""
    cdef Reader *reader = reader_of(places, slot, generation, log_dir)
    cdef Sliced *sliced
    cdef Spot spot
    cdef int64_t most = (
        wanted.bytes_max if wanted.bytes_max < answer.bytes_max else answer.bytes_max
    ), length, batch
    cdef bint first = answer.total == 0
    if wanted.offset >= bound.offset or (answer.bytes_max <= 0 and not first):
        return True
    if reader == NULL or answer.slices == SLICES_MAX or is_damaged(places, slot, generation):
        return False
    if not locate(places, reader, wanted.offset, bound, &spot):
        return False
    most = most if most > 0 else 0
    # Neither this process nor the processor may wait for the disk when it reads or sends the slice.
    if not is_warm(
        &spot, most if most > BATCH_HEADER_BYTES else BATCH_HEADER_BYTES, bound, places.now_ms,
    ):
        return False
    length = spot.limit - spot.position
    if length > most:
        length = most
        batch = first_batch_bytes(&spot, places.chunk)
        if batch == 0 or batch > spot.limit - spot.position:
            return False
        if length < batch:
            if not first:
                return True     # the next fetch gets it
            if not is_warm(&spot, batch, bound, places.now_ms):
                return False
            length = batch
    elif spot.segment.base == bound.segment_base:
        remember(spot.segment, bound.offset, bound.position)
    if length > 0x7fffffff:
        return False
    sliced = &answer.sliced[answer.slices]
    sliced.segment, sliced.slot, sliced.generation = spot.segment, slot, generation
    sliced.position, sliced.length = spot.position, <uint32_t>length
    answer.slices += 1
    answer.total += length
    answer.bytes_max -= length
    answer.settled |= spot.segment.base < bound.segment_base
    return True


cdef inline bint answer_partition(
    Answer *answer, Topic *topic, const Wanted *wanted, TableRef *table, PlacesRef *places, PartitionSlot *now
) noexcept nogil:
    """Write the partition's answer; read its slot into `now`. Return False to use the slow path."""
    cdef FetchCount *count
    cdef uint32_t before = answer.slices, length, slot, generation
    cdef uint8_t *p = answer.at
    if wanted.partition < 0 or wanted.partition >= topic.partitions or answer.end - p < PARTITION_BYTES_MAX:
        return False
    slot, generation = topic.places[wanted.partition].slot, topic.places[wanted.partition].generation
    if generation == 0 or not table_read(table, slot, now) or now.generation != generation:
        return False
    if memcmp(now.topic_id, topic.id, 16) or not may_read(wanted, now):
        return False
    if answer.isolation == READ_COMMITTED and wanted.offset < now.aborted_end:
        return False            # the answer may have to name aborted transactions
    if not slice_of(
        places, slot, generation, now.log_dir, wanted,
        &now.last_stable if answer.isolation == READ_COMMITTED else &now.high_watermark, answer,
    ):
        return False
    length = answer.sliced[before].length if answer.slices > before else 0
    if answer.counts.count == COUNTED_MAX:
        return False
    count = &answer.counts.partitions[answer.counts.count]
    count.slot, count.generation, count.length = slot, generation, length
    answer.counts.count += 1
    store_u32(p, <uint32_t>wanted.partition)
    store_u16(p + 4, 0)
    store_u64(p + 6, <uint64_t>now.high_watermark.offset)
    store_u64(p + 14, <uint64_t>now.last_stable.offset)
    p += 22
    if answer.version >= LOG_START:
        store_u64(p, <uint64_t>now.log_start_offset)
        p += 8
    p = put_aborted(p, answer)
    if answer.version >= RACK:
        store_u32(p, <uint32_t>-1)      # preferred_read_replica
        p += 4
    if answer.version >= FLEXIBLE:
        p = put_uvarint(p, length + 1)
    else:
        store_u32(p, length)
        p += 4
    if length:
        answer.sliced[before].lead_bytes = <uint32_t>(p - answer.start)
    if answer.version >= FLEXIBLE:
        p[0] = 0
        p += 1
    answer.at = p
    return True


cdef inline uint8_t *put_aborted(uint8_t *p, const Answer *answer) noexcept nogil:
    """Write aborted_transactions: empty for READ_COMMITTED, null otherwise."""
    cdef bint asked = answer.isolation == READ_COMMITTED
    if answer.version >= FLEXIBLE:
        p[0] = 1 if asked else 0
        return p + 1
    store_u32(p, 0 if asked else <uint32_t>-1)
    return p + 4


cdef inline Topic *take_topic(Cursor *c, int version, TopicsRef *topics) noexcept nogil:
    cdef int64_t length
    cdef const uint8_t *key
    if version >= TOPIC_IDS:
        key = take(c, 16)
        return topic_by_id(topics, key) if key != NULL else NULL
    length = take_length(c, version >= FLEXIBLE, False)
    key = take(c, length) if length > 0 else NULL
    return topic_by_name(topics, key, length) if key != NULL else NULL


cdef bint answer_topics(
    Cursor *c, Answer *answer, TopicsRef *topics, TableRef *table, PlacesRef *places
) noexcept nogil:
    cdef bint flexible = answer.version >= FLEXIBLE
    cdef int64_t count = take_length(c, flexible, True), _, partitions
    cdef const uint8_t *key
    cdef Topic *topic
    cdef Wanted wanted
    cdef PartitionSlot now
    if c.at == NULL or count < 1 or answer.end - answer.at < 5:
        return False
    answer.at = put_count(answer.at, <uint32_t>count, flexible)
    for _ in range(count):
        key = c.at
        topic = take_topic(c, answer.version, topics)
        if topic == NULL or not is_granted(topics, topic, MAY_READ):
            return False
        if answer.end - answer.at < (c.at - key) + 6:
            return False
        memcpy(answer.at, key, c.at - key)
        answer.at += c.at - key
        partitions = take_length(c, flexible, True)
        if c.at == NULL or partitions < 0:
            return False
        answer.at = put_count(answer.at, <uint32_t>partitions, flexible)
        for _ in range(partitions):
            if not take_partition(c, answer.version, &wanted):
                return False
            if not answer_partition(answer, topic, &wanted, table, places, &now):
                return False
        if flexible:
            skip_tags(c)
            if answer.at == answer.end:
                return False
            answer.at[0] = 0
            answer.at += 1
    return c.at != NULL


cdef bint take_changes(Cursor *c, int version, Session *session, Changes *changes) noexcept nogil:
    """Merge the session's partitions and the request's into `changes`. Return False for a new partition."""
    cdef int64_t topics = take_length(c, True, True), _, partitions
    cdef uint32_t place = session.cached[0].after, k
    cdef const uint8_t *topic_id
    cdef CachedPartition *cached
    cdef Wanted wanted
    if topics < 0:
        return False
    changes.count = 0
    while place:
        cached = &session.cached[place]
        changes.partitions[changes.count].place, changes.partitions[changes.count].asked = place, False
        wanted.partition, wanted.leader_epoch, wanted.offset = (
            cached.partition, cached.leader_epoch, cached.fetch_offset,
        )
        wanted.last_fetched_epoch, wanted.bytes_max = cached.last_fetched_epoch, cached.bytes_max
        changes.partitions[changes.count].wanted = wanted
        changes.count += 1
        place = cached.after
    for _ in range(topics):
        topic_id, partitions = take(c, 16), take_length(c, True, True)
        if c.at == NULL or partitions < 0:
            return False
        for _ in range(partitions):
            if not take_partition(c, version, &wanted):
                return False
            k = 0
            while k < changes.count and (
                changes.partitions[k].wanted.partition != wanted.partition
                or memcmp(session.cached[changes.partitions[k].place].topic_id, topic_id, 16)
            ):
                k += 1
            if k == changes.count:
                return False
            changes.partitions[k].wanted, changes.partitions[k].asked = wanted, True
        skip_tags(c)
    return c.at != NULL


cdef inline uint8_t *put_topic(uint8_t *p, const uint8_t *topic_id, bint follows) noexcept nogil:
    """End the previous topic's entry if `follows`. Begin a new one; return where its partition count is."""
    if follows:
        p[0] = 0
        p += 1
    memcpy(p, topic_id, 16)
    p[16] = 1
    return p + 16


cdef bint answer_changes(
    Answer *answer, Changes *changes, TopicsRef *topics, TableRef *table, PlacesRef *places
) noexcept nogil:
    """Write the session's partitions that have changed. Return False to leave the fetch to the slow path.

    Consecutive partitions of a topic share one topic entry. Each count is less than 127, so it takes one
    byte.
    """
    cdef uint8_t *count = answer.at
    cdef uint8_t *of_topic = NULL
    cdef uint8_t *before
    cdef const uint8_t *topic_id = NULL
    cdef CachedPartition *cached
    cdef PartitionSlot now
    cdef Change *change
    cdef Topic *topic
    cdef uint32_t i, slices
    cdef bint another
    count[0] = 1
    answer.at += 1
    for i in range(changes.count):
        change = &changes.partitions[i]
        cached, before, slices = &answer.session.cached[change.place], answer.at, answer.slices
        another = topic_id == NULL or memcmp(topic_id, cached.topic_id, 16) != 0
        if another:
            answer.at += 17 + (topic_id != NULL)
        topic = topic_by_id(topics, cached.topic_id)
        if topic == NULL or not is_granted(topics, topic, MAY_READ):
            return False
        if not answer_partition(answer, topic, &change.wanted, table, places, &now):
            return False
        change.records = answer.slices > slices
        change.high_watermark, change.log_start_offset = now.high_watermark.offset, now.log_start_offset
        if not change.records and cached.high_watermark == change.high_watermark:
            if cached.log_start_offset == change.log_start_offset:
                answer.at = before
                continue
        if another:
            of_topic = put_topic(before, cached.topic_id, topic_id != NULL)
            topic_id = cached.topic_id
            count[0] += 1
        of_topic[0] += 1
    if topic_id != NULL:
        if answer.at == answer.end:
            return False
        answer.at[0] = 0
        answer.at += 1
    return True


cdef void carry_out(Session *session, const Changes *changes, int64_t now_ms) noexcept nogil:
    """Record the request's changes and the answer in the session."""
    cdef CachedPartition *cached
    cdef const Change *change
    cdef uint32_t i
    for i in range(changes.count):
        change = &changes.partitions[i]
        cached = &session.cached[change.place]
        if change.asked:
            cached.leader_epoch, cached.fetch_offset = change.wanted.leader_epoch, change.wanted.offset
            cached.last_fetched_epoch, cached.bytes_max = (
                change.wanted.last_fetched_epoch, change.wanted.bytes_max,
            )
        cached.high_watermark, cached.log_start_offset = change.high_watermark, change.log_start_offset
        if change.records:
            move_to_end(session, change.place)
    session.epoch, session.used_ms = epoch_after(session.epoch), now_ms


cdef bint take_session(
    SessionsRef *sessions, const SessionOfFetch *asked_session, int version, Session **session
) noexcept nogil:
    """Set `session` to the fetch's session, or NULL if it has none. Return False to use the slow path."""
    session[0] = NULL
    if asked_session.epoch == FINAL_FETCH or (asked_session.epoch == FULL_FETCH and sessions.none):
        return asked_session.id == 0  # another id ends that session
    if asked_session.epoch <= 0 or version < TOPIC_IDS:
        return False
    session[0] = session_by_id(sessions, asked_session.id)
    if session[0] == NULL or not session[0].by_id:
        return False
    return session[0].epoch == asked_session.epoch and 0 < session[0].count <= SLICES_MAX


cdef bint take_rest(Cursor *c, int version, const TopicsRef *topics) noexcept nogil:
    """Read the fields after the topics.

    Return False for forgotten topics, tags, malformed bytes, and for a rack with replicas.
    """
    cdef bint flexible = version >= FLEXIBLE
    cdef const uint8_t *rack
    cdef int64_t length
    if version >= SESSIONS and take_length(c, flexible, True) != 0:
        return False            # forgotten topics belong to a session
    if version >= RACK:
        length = take_length(c, flexible, False)
        rack = take(c, length if length > 0 else 0)
        if length > 0 and rack != NULL and has_replicas(topics, rack, length):
            return False
    # Tags at this place carry the id of a follower, or a cluster id.
    if flexible and take_uvarint(c) != 0:
        return False
    return c.at != NULL and c.at == c.end


cdef bint place_parts(Answer *answer, uint8_t *block, ReplySlot *out) noexcept nogil:
    """Write segment paths and Part structs after the response's bytes. Return False if room is short."""
    cdef uint8_t *path = answer.at
    cdef uint64_t paths = 0, at
    cdef uint32_t i, sent = 0
    cdef Sliced *sliced
    cdef Part *part
    for i in range(answer.slices):
        paths += answer.sliced[i].segment.path_length
    at = ((<uint64_t>(answer.at - block) + paths) + 7) & ~(<uint64_t>7)
    if block + at + (2 * answer.slices + 1) * sizeof(Part) > answer.end:
        return False
    part = <Part *>(block + at)
    memset(part, 0, (2 * answer.slices + 1) * sizeof(Part))
    for i in range(answer.slices):
        sliced = &answer.sliced[i]
        memcpy(path, sliced.segment.path, sliced.segment.path_length)
        part.kind, part.length = PART_BYTES, sliced.lead_bytes - sent
        part.position = <uint64_t>(answer.start - block) + sent
        sent = sliced.lead_bytes
        part += 1
        part.kind, part.length, part.position = PART_FILE, sliced.length, <uint64_t>sliced.position
        part.slot, part.slot_generation = sliced.slot, sliced.generation
        part.segment_base, part.file_generation = sliced.segment.base, sliced.segment.inode
        part.path, part.path_length = <uint32_t>(path - block), sliced.segment.path_length
        path += sliced.segment.path_length
        part += 1
    part.kind, part.length = PART_BYTES, <uint32_t>(answer.at - answer.start) - sent
    part.position = <uint64_t>(answer.start - block) + sent
    out.kind, out.position, out.length = (
        SEND_PARTS, <uint32_t>at, 2 * answer.slices + (1 if part.length else 0),
    )
    return True


cdef bint try_fetch(
    RequestSlot *request, uint8_t *arena, TopicsRef *topics, TableRef *table, PlacesRef *places,
    SessionsRef *sessions, int64_t now_ms, int32_t fetch_bytes_max, ReplySlot *out, FetchCounts *counts
) noexcept nogil:
    """Answer a hot fetch and fill `out` except `done_ns`. Return False for any other fetch."""
    cdef int version = request.api_version
    cdef uint8_t *block = arena + request.block
    cdef int32_t wait_ms, bytes_min, bytes_max
    cdef SessionOfFetch asked_session
    cdef Changes changes
    cdef Answer answer
    cdef Cursor c
    topics.asking = request.connection
    if version < FIRST_FETCH_VERSION or version > LAST_FETCH_VERSION or request.body > request.length:
        return False
    c.at, c.end = block + request.body, block + request.length
    if version < REPLICA_STATE and <int32_t>take_u32(&c) >= 0:
        return False            # a follower
    wait_ms, bytes_min, bytes_max = <int32_t>take_u32(&c), <int32_t>take_u32(&c), <int32_t>take_u32(&c)
    if take(&c, 1) == NULL:
        return False
    answer.isolation = <int8_t>(c.at - 1)[0]
    answer.session = NULL
    if version >= SESSIONS:
        asked_session.id, asked_session.epoch = <int32_t>take_u32(&c), <int32_t>take_u32(&c)
        if (asked_session.epoch != FINAL_FETCH or asked_session.id != 0) and not take_session(
            sessions, &asked_session, version, &answer.session,
        ):
            return False
    counts.incremental = answer.session != NULL
    counts.count, answer.counts = 0, counts
    places.now_ms = now_ms
    answer.version, answer.settled, answer.slices, answer.total = version, False, 0, 0
    answer.bytes_max = bytes_max if bytes_max < fetch_bytes_max else fetch_bytes_max
    answer.start = block + ((request.length + 7) & ~(<uint64_t>7))
    answer.end = block + block_capacity(arena, request.block)
    if answer.end - answer.start < PARTITION_BYTES_MAX:
        return False
    answer.at = put_head(&answer, <uint32_t>request.correlation)
    if answer.session == NULL:
        if not answer_topics(&c, &answer, topics, table, places):
            return False
    elif not take_changes(&c, version, answer.session, &changes):
        return False
    elif not answer_changes(&answer, &changes, topics, table, places):
        return False
    if not take_rest(&c, version, topics):
        return False
    if not (
        answer.settled or wait_ms <= 0 or answer.total >= <uint64_t>least_bytes(bytes_min, fetch_bytes_max)
    ):
        return False            # the fetch must wait
    if version >= FLEXIBLE:
        if answer.at == answer.end:
            return False
        answer.at[0] = 0
        answer.at += 1
    if answer.total + (answer.at - answer.start) > 0x7fffffff:
        return False
    store_u32(answer.start, <uint32_t>(answer.total + (answer.at - answer.start) - 4))
    if not reply(request, &answer, block, out):
        return False
    if answer.session != NULL:
        carry_out(answer.session, &changes, now_ms)
    return True


cdef inline int32_t least_bytes(int32_t bytes_min, int32_t fetch_bytes_max) noexcept nogil:
    if bytes_min > fetch_bytes_max:
        return fetch_bytes_max
    return bytes_min if bytes_min > 0 else 0


cdef uint8_t *put_head(Answer *answer, uint32_t correlation) noexcept nogil:
    """Write the fields before the topics except the size, which is filled in last; return their end."""
    cdef uint8_t *p = answer.start + 8
    store_u32(answer.start + 4, correlation)
    if answer.version >= FLEXIBLE:
        p[0] = 0
        p += 1
    store_u32(p, 0)
    p += 4
    if answer.version >= SESSIONS:
        store_u16(p, 0)
        store_u32(p + 2, <uint32_t>answer.session.id if answer.session != NULL else 0)
        p += 6
    return p


cdef bint reply(const RequestSlot *request, Answer *answer, uint8_t *block, ReplySlot *out) noexcept nogil:
    memset(out, 0, sizeof(ReplySlot))
    out.owner, out.channel, out.connection = request.processor, request.channel, request.connection
    out.block, out.generation, out.request = request.block, request.generation, request.request
    if answer.slices:
        return place_parts(answer, block, out)
    out.kind = SEND
    out.position, out.length = <uint32_t>(answer.start - block), <uint32_t>(answer.at - answer.start)
    return True
