"""Native path of the common Produce request. See `produce.pxd` for what it covers."""
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from mpbroker.handlers.hot_path.topic_table cimport (
    MAY_WRITE, Place, Topic, TopicsRef, is_granted, topic_by_id, topic_by_name,
)
from mpbroker.ipc.jobs cimport HOLE_BYTES, LOG_START_BYTES
from mpbroker.ipc.slots cimport PRODUCE, JobBatch, JobHeader, ProduceSlot, RequestSlot
from mpbroker.records.batch cimport (
    ATTRIBUTES_AT, BATCH_COMPRESSED, BATCH_OK, CODEC_MASK, LOG_APPEND_TIME_BIT, NO_TIMESTAMP,
    TRANSACTIONAL_BIT, BatchInfo, set_max_timestamp, validate_batch,
)
from mpbroker.records.unpack cimport Unpacker, unpack_batch, unpacker_reset
from mpbroker.handlers.hot_path.wire cimport (
    NULL_LENGTH, Cursor, count_bytes, put_count, skip_tags, take, take_length, take_u16, take_u32,
)
from mpbroker.records.wire cimport store_u16, store_u32, store_u64
from shm.arena cimport block_capacity

cdef enum:
    ZSTD = 4                    # mpbroker.records.compression.Codec


cdef inline int partition_reply_bytes(int version) noexcept nogil:
    cdef int n = 4 + HOLE_BYTES + (LOG_START_BYTES if version >= FIRST_LOG_START_VERSION else 0)
    if version >= FIRST_FLEXIBLE_VERSION:
        return n + 3            # record_errors, error_message, tags
    return n + 6 if version >= FIRST_RECORD_ERRORS_VERSION else n


cdef bint measure(const uint8_t *body, uint64_t length, int version, Shape *shape) noexcept nogil:
    """Set `shape` to the body's counts and sizes. Return False if the body is malformed or not common."""
    cdef bint flexible = version >= FIRST_FLEXIBLE_VERSION
    cdef int64_t count, topics, partitions, _
    cdef int16_t acks
    cdef const uint8_t *name
    cdef Cursor c
    c.at, c.end = body, body + length
    if take_length(&c, flexible, False) != NULL_LENGTH:
        return False            # transactional
    acks = <int16_t>take_u16(&c)
    shape.acks = <int8_t>acks
    shape.timeout_ms = <int32_t>take_u32(&c)
    topics = take_length(&c, flexible, True)
    if c.at == NULL or acks < -1 or acks > 1 or topics < 1 or topics > <int64_t>length:
        return False
    shape.topics, shape.partitions = <uint32_t>topics, 0
    shape.topics_at = <uint32_t>(c.at - body)
    shape.reply_bytes = 4 + 4 + flexible + count_bytes(<uint32_t>topics, flexible) + 4 + flexible
    for _ in range(topics):
        name = c.at
        if version >= FIRST_TOPIC_ID_VERSION:
            take(&c, 16)
        else:
            count = take_length(&c, flexible, False)
            if count < 0 or take(&c, count) == NULL:
                return False
        if c.at == NULL:
            return False
        shape.reply_bytes += c.at - name
        partitions = take_length(&c, flexible, True)
        if partitions < 1 or partitions > <int64_t>length:
            return False
        shape.partitions += <uint32_t>partitions
        shape.reply_bytes += count_bytes(<uint32_t>partitions, flexible) + flexible
        shape.reply_bytes += partitions * partition_reply_bytes(version)
        for _ in range(partitions):
            take_u32(&c)
            count = take_length(&c, flexible, True)
            if count < 0 or take(&c, count) == NULL:
                return False
            if flexible:
                skip_tags(&c)
        if flexible:
            skip_tags(&c)
        if c.at == NULL:
            return False
    if flexible:
        skip_tags(&c)
    return c.at == c.end


cdef inline bint timestamps_allowed(Topic *topic, BatchInfo *info, int64_t now_ms) noexcept nogil:
    """Check timestamps like LogValidator.validateTimestamp. Return False to use the slow path."""
    if info.attributes & LOG_APPEND_TIME_BIT:
        return False
    if topic.append_time or info.min_timestamp == NO_TIMESTAMP:
        return True
    if info.min_timestamp < NO_TIMESTAMP:
        return False
    if now_ms - info.min_timestamp > topic.before_max_ms:
        return False
    return info.max_timestamp - now_ms <= topic.after_max_ms


cdef inline bint is_kept(Topic *topic, const uint8_t *records, int64_t length, int version) noexcept nogil:
    """Return True if the batch, not validated yet, has the topic's codec and `version` allows this codec."""
    cdef int codec
    if length <= ATTRIBUTES_AT + 1:
        return False
    codec = records[<int>ATTRIBUTES_AT + 1] & CODEC_MASK
    if codec == ZSTD and version < FIRST_ZSTD_VERSION:
        return False
    return topic.codec < 0 or topic.codec == codec


cdef inline bint is_valid(
    Topic *topic, Unpacker *unpacker, const uint8_t *records, int64_t length, BatchInfo *info
) noexcept nogil:
    cdef int verdict = validate_batch(records, length, topic.max_message_bytes, info)
    if verdict == BATCH_COMPRESSED:
        verdict = unpack_batch(unpacker, records, info)
    return verdict == BATCH_OK


cdef bint accept_batch(
    Topic *topic, Unpacker *unpacker, int32_t partition, const uint8_t *records, int64_t length, int version,
    int64_t now_ms, JobBatch *job
) noexcept nogil:
    """Fill `job` except `data` and `hole`. Return False if the batch cannot be appended unchanged."""
    cdef BatchInfo info
    cdef Place place
    if partition < 0 or partition >= topic.partitions:
        return False
    place = topic.places[partition]
    if place.generation == 0 or not is_kept(topic, records, length, version):
        return False
    if not is_valid(topic, unpacker, records, length, &info):
        return False
    if info.attributes & TRANSACTIONAL_BIT or (topic.keyed and info.has_null_key):
        return False
    if not timestamps_allowed(topic, &info, now_ms):
        return False
    memset(job, 0, sizeof(JobBatch))
    job.slot, job.slot_generation = place.slot, place.generation
    job.length, job.count = info.length, info.count
    job.producer_id, job.producer_epoch = info.producer_id, info.producer_epoch
    job.base_sequence = info.base_sequence
    job.max_timestamp, job.attributes = info.max_timestamp, info.attributes
    job.config_version = topic.config_version
    job.base_offset = job.append_time_ms = job.log_start_offset = -1
    # Noted here until all batches are accepted: only then may the request be changed.
    job.error = 1 if info.max_timestamp_wrong and not topic.append_time else 0
    return True


cdef uint8_t *put_partition(uint8_t *p, int32_t partition, int version) noexcept nogil:
    """Write a partition's response with default values; results replace them later. Return its end."""
    store_u32(p, <uint32_t>partition)
    store_u16(p + 4, 0)
    store_u64(p + 6, <uint64_t>-1)
    store_u64(p + 14, <uint64_t>-1)
    p += 22
    if version >= FIRST_LOG_START_VERSION:
        store_u64(p, <uint64_t>-1)
        p += 8
    if version >= FIRST_FLEXIBLE_VERSION:
        p[0], p[1], p[2] = 1, 0, 0
        return p + 3
    if version >= FIRST_RECORD_ERRORS_VERSION:
        store_u32(p, 0)
        store_u16(p + 4, 0xFFFF)
        return p + 6
    return p


cdef bint accept(
    const uint8_t *body, uint64_t length, int version, Shape *shape, TopicsRef *topics, Unpacker *unpacker,
    int64_t now_ms, uint8_t *arena, uint64_t block, JobBatch *jobs, uint8_t *reply, uint32_t correlation
) noexcept nogil:
    """Look up topics, validate batches, write `jobs` and `reply`. Return False to use the slow path."""
    cdef bint flexible = version >= FIRST_FLEXIBLE_VERSION
    cdef uint32_t _, partitions, worker
    cdef int64_t count
    cdef int32_t partition
    cdef const uint8_t *key
    cdef Topic *topic
    cdef Cursor c
    cdef uint8_t *p = reply + 8
    c.at, c.end = body + shape.topics_at, body + length
    shape.workers = 0
    store_u32(reply, <uint32_t>(shape.reply_bytes - 4))
    store_u32(reply + 4, correlation)
    if flexible:
        p[0] = 0
        p += 1
    p = put_count(p, shape.topics, flexible)
    for _ in range(shape.topics):
        key = c.at
        if version >= FIRST_TOPIC_ID_VERSION:
            topic = topic_by_id(topics, take(&c, 16))
        else:
            count = take_length(&c, flexible, False)
            topic = topic_by_name(topics, take(&c, count), count)
        if topic == NULL or not topic.fast or not is_granted(topics, topic, MAY_WRITE):
            return False
        memcpy(p, key, c.at - key)
        p += c.at - key
        partitions = <uint32_t>take_length(&c, flexible, True)
        p = put_count(p, partitions, flexible)
        for _ in range(partitions):
            partition = <int32_t>take_u32(&c)
            count = take_length(&c, flexible, True)
            if not accept_batch(topic, unpacker, partition, c.at, count, version, now_ms, jobs):
                return False
            worker = topic.places[partition].worker
            if topics.down >> worker & 1:
                return False        # the slow path answers with the error
            shape.workers |= <uint32_t>1 << worker
            jobs.data = take(&c, count) - arena
            jobs.hole = <uint32_t>(p + 4 - arena - block)
            jobs.has_log_start = version >= FIRST_LOG_START_VERSION
            jobs += 1
            p = put_partition(p, partition, version)
            if flexible:
                skip_tags(&c)
        if flexible:
            skip_tags(&c)
            p[0] = 0
            p += 1
    store_u32(p, 0)             # throttle_time_ms
    if flexible:
        p[4] = 0
    return True


cdef bint try_produce(
    RequestSlot *request, uint8_t *arena, TopicsRef *topics, Unpacker *unpacker, int64_t now_ms,
    uint16_t sender, ProduceSlot *out
) noexcept nogil:
    """Turn a common request into a job, and fill its descriptor `out`. Return False for any other request."""
    cdef int version = request.api_version
    cdef uint8_t *base = arena + request.block
    cdef uint64_t job = (request.length + 7) & ~(<uint64_t>7), reply
    cdef JobBatch *jobs = <JobBatch *>(base + job + sizeof(JobHeader))
    cdef JobHeader *header = <JobHeader *>(base + job)
    cdef Shape shape
    cdef uint32_t i
    topics.asking = request.connection
    unpacker_reset(unpacker)
    if version < FIRST_PRODUCE_VERSION or version > LAST_PRODUCE_VERSION or request.body > request.length:
        return False
    if not measure(base + request.body, request.length - request.body, version, &shape):
        return False
    reply = job + sizeof(JobHeader) + shape.partitions * sizeof(JobBatch)
    if reply + shape.reply_bytes > block_capacity(arena, request.block):
        return False
    if not accept(
        base + request.body, request.length - request.body, version, &shape, topics, unpacker,
        now_ms, arena, request.block, jobs, base + reply, <uint32_t>request.correlation,
    ):
        return False
    header.batches, header.workers = shape.partitions, shape.workers
    header.reply, header.reply_length = <uint32_t>reply, <uint32_t>shape.reply_bytes
    for i in range(shape.partitions):
        jobs[i].data_owner = request.processor
        if jobs[i].error:
            jobs[i].error = 0
            set_max_timestamp(arena + jobs[i].data, jobs[i].length, jobs[i].max_timestamp)
        if shape.acks == 0:
            jobs[i].hole = 0
    if shape.acks == 0:
        header.reply = header.reply_length = 0
    memset(out, 0, sizeof(ProduceSlot))
    out.kind, out.acks, out.processor, out.channel = PRODUCE, shape.acks, request.processor, request.channel
    out.connection, out.block, out.generation = request.connection, request.block, request.generation
    out.job, out.owner, out.sender = <uint32_t>job, request.processor, sender
    # Java's timeouts are signed; a negative one has run out already.
    out.timeout_ms = <uint32_t>(shape.timeout_ms if shape.timeout_ms > 0 else 0)
    out.request = request.request
    return True


cdef void set_throttle(
    ProduceSlot *job, uint8_t *arena, int version, uint32_t throttle_ms, int by
) noexcept nogil:
    """Write the throttle time into the descriptor and the response of a job that `try_produce` made."""
    cdef JobHeader *header = <JobHeader *>(arena + job.block + job.job)
    cdef uint64_t from_end = 4 + (version >= FIRST_FLEXIBLE_VERSION)
    job.throttle_ms, job.throttled_by = throttle_ms, <uint32_t>by
    if header.reply_length:
        store_u32(arena + job.block + header.reply + header.reply_length - from_end, throttle_ms)
