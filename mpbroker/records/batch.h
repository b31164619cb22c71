/* The record batch of magic 2: its layout, the check of a batch that a producer sent, and the in-place
 * changes the log makes. Only this file knows offsets into a batch; batch.pxd gives them to Cython,
 * batch.pyx to Python. (Kafka: DefaultRecordBatch, DefaultRecord,
 * UnifiedLog.analyzeAndValidateRecords, LogValidator; KIP-98.)
 *
 *      at  field                 type
 *     +--+----------------------+-----+
 *     | 0| base offset          | i64 |
 *     | 8| batch length         | i32 |  counts the bytes from 12 on
 *     +--+----------------------+-----+
 *     |12| leader epoch         | i32 |
 *     |16| magic                | i8  |
 *     |17| CRC-32C              | u32 |  covers the bytes from 21 on
 *     +--+----------------------+-----+
 *     |21| attributes           | i16 |  bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control,
 *     |23| last offset delta    | i32 |       6 base timestamp is the delete horizon
 *     |27| base timestamp       | i64 |
 *     |35| max timestamp        | i64 |
 *     |43| producer id          | i64 |
 *     |51| producer epoch       | i16 |
 *     |53| base sequence        | i32 |
 *     |57| record count         | i32 |
 *     |61| records              |     |  one after the other, or one compressed stream of them
 *     +--+----------------------+-----+
 *
 * All integers are big-endian. A record is:
 *     length varint | attributes i8 | timestamp delta varlong | offset delta varint
 *     | key length varint | key | value length varint | value
 *     | header count varint | (key length varint | key | value length varint | value)...
 * where a varint is zigzag, then groups of seven bits, lowest first; a length below 0 is null.
 *
 * Nothing here allocates, calls Python, or reads outside of the bytes it was given. */
#ifndef MPBROKER_RECORDS_BATCH_H
#define MPBROKER_RECORDS_BATCH_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "mpbroker/records/crc32c.h"

enum {
    BASE_OFFSET_AT = 0,
    BATCH_LENGTH_AT = 8,
    LENGTH_COUNTS_FROM = 12,
    LEADER_EPOCH_AT = 12,
    MAGIC_AT = 16,
    MAGIC_ENDS_AT = 17,
    CRC_AT = 17,
    CRC_COVERS_FROM = 21,
    ATTRIBUTES_AT = 21,
    LAST_OFFSET_DELTA_AT = 23,
    BASE_TIMESTAMP_AT = 27,
    MAX_TIMESTAMP_AT = 35,
    PRODUCER_ID_AT = 43,
    PRODUCER_EPOCH_AT = 51,
    BASE_SEQUENCE_AT = 53,
    RECORD_COUNT_AT = 57,
    BATCH_HEADER_BYTES = 61,

    SMALLEST_BATCH_LENGTH = 14, /* of magic 0; less is corrupt with any magic */
    SMALLEST_RECORD_BYTES = 7,  /* an empty record with its length */
    CURRENT_MAGIC = 2,

    CODEC_MASK = 0x07,
    LOG_APPEND_TIME_BIT = 0x08,
    TRANSACTIONAL_BIT = 0x10,
    CONTROL_BIT = 0x20,
    DELETE_HORIZON_BIT = 0x40,
    LAST_CODEC = 4, /* 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd */
};
static_assert(RECORD_COUNT_AT + 4 == BATCH_HEADER_BYTES, "the header ends with the record count");
static_assert(CRC_AT + 4 == CRC_COVERS_FROM, "the CRC covers all that follows it");

/* For functions that run once per field: a call costs as much as the work, and -O2 would not inline them. */
#define PER_FIELD static inline __attribute__((always_inline))

#define NO_TIMESTAMP (-1)
#define NO_PRODUCER_ID (-1)
#define NO_SEQUENCE (-1)

/* The results of validate_batch. From MORE on they are refusals; TRAILING is left to the slow path. */
enum BatchVerdict {
    BATCH_OK = 0,
    BATCH_COMPRESSED = 1, /* the header is good; the records must be decompressed and walked */
    BATCH_TRAILING = 2,   /* a good batch, then a piece of another: Kafka cuts that off */
    BATCH_MORE = 3,       /* a second batch follows: INVALID_RECORD(87) in a produce request */
    BATCH_CORRUPT = 4,    /* CORRUPT_MESSAGE(2) */
    BATCH_INVALID = 5,    /* INVALID_RECORD(87) */
    BATCH_TOO_LARGE = 6,  /* MESSAGE_TOO_LARGE(10) */
};

/* The reasons for a refusal. batch.pyx has their texts. */
enum BatchReason {
    REASON_NONE = 0,
    REASON_NO_BATCH,
    REASON_LENGTH,
    REASON_UNKNOWN_MAGIC,
    REASON_OLD_MAGIC,
    REASON_BASE_OFFSET,
    REASON_SIZE,
    REASON_SHORT_HEADER,
    REASON_CRC,
    REASON_CODEC,
    REASON_CONTROL,
    REASON_COUNT,
    REASON_SEQUENCE,
    REASON_SECOND_BATCH,
    REASON_RECORD_LENGTH,
    REASON_RECORD_FIELD,
    REASON_OFFSET_DELTA,
    REASON_HEADERS,
    REASON_RECORD_END,
    REASON_BATCH_END,
    REASON_COUNT_OF_REASONS
};

typedef struct BatchInfo {
    int32_t length;            /* whole, with the first 12 bytes */
    int32_t count;
    int32_t last_offset_delta;
    int32_t base_sequence;
    int64_t base_timestamp;
    int64_t max_timestamp;     /* the records' if they were walked, else the header's */
    int64_t min_timestamp;     /* smallest of the walked records except -1; -1 without one */
    int64_t header_max_timestamp;
    int64_t producer_id;
    int16_t producer_epoch;
    int16_t attributes;
    int codec;
    int has_null_key;          /* of the walked records */
    int max_timestamp_wrong;   /* the header's differs from the records' */
    int reason;
    int32_t bad_record;        /* index of the record that was refused, else -1 */
} BatchInfo;

/* ---- numbers ---- */

static inline uint16_t load_u16(const uint8_t *p) {
    uint16_t x;
    memcpy(&x, p, 2);
    return __builtin_bswap16(x);
}

static inline uint32_t load_u32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return __builtin_bswap32(x);
}

static inline uint64_t load_u64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
    return __builtin_bswap64(x);
}

static inline void store_u16(uint8_t *p, uint16_t x) {
    x = __builtin_bswap16(x);
    memcpy(p, &x, 2);
}

static inline void store_u32(uint8_t *p, uint32_t x) {
    x = __builtin_bswap32(x);
    memcpy(p, &x, 4);
}

static inline void store_u64(uint8_t *p, uint64_t x) {
    x = __builtin_bswap64(x);
    memcpy(p, &x, 8);
}

/* Adds with wrapping: timestamps come from clients, and signed overflow is undefined in C. */
static inline int64_t add_wrapping(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

static inline int64_t subtract_wrapping(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }

PER_FIELD int64_t unzigzag(uint64_t raw) { return (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1); }

/* Reads a number of up to max_bytes groups. Sets *p to NULL if it does not end before `end`, or is too
 * wide. */
static __attribute__((noinline)) int64_t read_wide(
    const uint8_t **p, const uint8_t *end, int max_bytes, uint8_t last_limit) {
    const uint8_t *at = *p;
    uint64_t raw = 0;
    for (int i = 0; i < max_bytes && at < end; i++) {
        uint8_t byte = *at++;
        if (i == max_bytes - 1 && byte > last_limit) break;
        raw |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *p = at;
            return unzigzag(raw);
        }
    }
    *p = NULL;
    return 0;
}

/* Reads a number. A failed read leaves *p NULL, and a NULL stays NULL, so that a caller may read several
 * numbers and check once. Nearly all numbers in a record take up to three bytes, so those need no loop. */
PER_FIELD int64_t read_number(const uint8_t **p, const uint8_t *end, int max_bytes, uint8_t last_limit) {
    const uint8_t *at = *p;
    if (__builtin_expect(at == NULL || at == end, 0)) {
        *p = NULL;
        return 0;
    }
    uint32_t first = at[0];
    if (__builtin_expect(first < 0x80, 1)) {
        *p = at + 1;
        return unzigzag(first);
    }
    if (end - at >= 3) {
        if (at[1] < 0x80) {
            *p = at + 2;
            return unzigzag((first & 0x7f) | (uint32_t)at[1] << 7);
        }
        if (at[2] < 0x80) {
            *p = at + 3;
            return unzigzag((first & 0x7f) | (uint32_t)(at[1] & 0x7f) << 7 | (uint32_t)at[2] << 14);
        }
    }
    return read_wide(p, end, max_bytes, last_limit);
}

PER_FIELD int64_t read_varint(const uint8_t **p, const uint8_t *end) { return read_number(p, end, 5, 0x0f); }

PER_FIELD int64_t read_varlong(const uint8_t **p, const uint8_t *end) {
    return read_number(p, end, 10, 0x01);
}

static inline uint8_t *write_varlong(uint8_t *p, int64_t number) {
    uint64_t raw = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    for (; raw >= 0x80; raw >>= 7) *p++ = (uint8_t)(raw | 0x80);
    *p++ = (uint8_t)raw;
    return p;
}

static inline int varlong_bytes(int64_t number) {
    uint64_t raw = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    return (70 - __builtin_clzll(raw | 1)) / 7;
}

/* ---- records ---- */

/* One record, as pointers into the batch; NULL for null. */
typedef struct RecordView {
    int64_t timestamp_delta;
    int64_t offset_delta;
    const uint8_t *key;
    const uint8_t *value;
    int64_t key_bytes;
    int64_t value_bytes;
    const uint8_t *headers; /* the first header, after the count */
    int64_t header_count;
} RecordView;

/* Skips a length and its bytes, and points *field at them (NULL if null). Returns the length, -1 for null or
 * an error; an error leaves *p NULL. */
PER_FIELD int64_t read_bytes(const uint8_t **p, const uint8_t *end, const uint8_t **field) {
    int64_t bytes = read_varint(p, end);
    *field = NULL;
    if (__builtin_expect(*p == NULL, 0) || bytes < 0) return -1;
    if (__builtin_expect(bytes > end - *p, 0)) {
        *p = NULL;
        return -1;
    }
    *field = *p;
    *p += bytes;
    return bytes;
}

/* Skips the headers. Returns NULL if one does not fit or has a null key. */
static inline const uint8_t *skip_headers(const uint8_t *p, const uint8_t *end, int64_t count) {
    if (count < 0 || count > end - p) return NULL;
    while (count--) {
        const uint8_t *field;
        int64_t key_bytes = read_bytes(&p, end, &field);
        if (p == NULL || key_bytes < 0) return NULL;
        read_bytes(&p, end, &field);
        if (p == NULL) return NULL;
    }
    return p;
}

/* Reads the record at *p, which must end at or before `end`, up to record->headers. Moves *p past its
 * length, and points *stop past the record. Returns a BatchReason, 0 if good. */
PER_FIELD int read_fields(const uint8_t **p, const uint8_t *end, RecordView *record, const uint8_t **stop) {
    int64_t bytes = read_varint(p, end);
    if (__builtin_expect(*p == NULL || bytes < SMALLEST_RECORD_BYTES - 1 || bytes > end - *p, 0))
        return REASON_RECORD_LENGTH;
    const uint8_t *at = *p + 1; /* the attributes of a record are not used */
    *stop = *p + bytes;
    record->timestamp_delta = read_varlong(&at, *stop);
    record->offset_delta = read_varint(&at, *stop);
    if (__builtin_expect(at == NULL, 0)) return REASON_RECORD_FIELD;
    record->key_bytes = read_bytes(&at, *stop, &record->key);
    if (__builtin_expect(at == NULL, 0)) return REASON_RECORD_FIELD;
    record->value_bytes = read_bytes(&at, *stop, &record->value);
    record->header_count = read_varint(&at, *stop);
    if (__builtin_expect(at == NULL, 0)) return REASON_RECORD_FIELD;
    record->headers = at;
    return REASON_NONE;
}

/* Reads the record at *p, which must end at or before `end`, and moves *p past it.
 * Returns a BatchReason, 0 if good. */
PER_FIELD int read_record(const uint8_t **p, const uint8_t *end, RecordView *record) {
    const uint8_t *stop;
    int reason = read_fields(p, end, record, &stop);
    if (__builtin_expect(reason, 0)) return reason;
    const uint8_t *at = record->headers;
    if (__builtin_expect(record->header_count != 0, 0)) {
        at = skip_headers(at, stop, record->header_count);
        if (at == NULL) return REASON_HEADERS;
    }
    if (__builtin_expect(at != stop, 0)) return REASON_RECORD_END;
    *p = stop;
    return REASON_NONE;
}

/* Reads a record that a walk has accepted, and moves *p past it. Its headers, of which there may be
 * millions, are not read. Returns a BatchReason, 0 if good. */
PER_FIELD int read_accepted(const uint8_t **p, const uint8_t *end, RecordView *record) {
    const uint8_t *stop;
    int reason = read_fields(p, end, record, &stop);
    if (__builtin_expect(reason == REASON_NONE, 1)) *p = stop;
    return reason;
}

/* A walk over the records of a batch: its result, and where it is. */
typedef struct RecordWalk {
    int64_t max_timestamp; /* -1 if none is larger: Kafka starts from "no timestamp" */
    int64_t min_timestamp; /* except -1 */
    int has_null_key;
    int consecutive;       /* offset deltas are 0, 1, 2, … */
    int32_t bad_record;
    int32_t done;              /* records, the last of them maybe except headers */
    int64_t headers_left;      /* of the last record */
    const uint8_t *record_end; /* of the last record, while it has headers left */
} RecordWalk;

/* A walk over a record with more headers can stop within them. */
#define MANY_HEADERS 4096

static inline void begin_walk(RecordWalk *walk) {
    walk->max_timestamp = NO_TIMESTAMP;
    walk->min_timestamp = INT64_MAX;
    walk->has_null_key = 0;
    walk->consecutive = 1;
    walk->bad_record = -1;
    walk->done = 0;
    walk->headers_left = 0;
}

/* Walks the records up to number `to`, not included, and moves *p past them. Timestamps are base + delta.
 * Stops at the headers of a record that has many: then `walk_headers` continues. Returns a BatchReason, 0 if
 * good. */
static inline int walk_some(
    const uint8_t **p, const uint8_t *end, int32_t to, int64_t base_timestamp, RecordWalk *walk) {
    RecordView record;
    const uint8_t *at = *p, *stop;
    int64_t max_timestamp = walk->max_timestamp, min_timestamp = walk->min_timestamp;
    int has_null_key = walk->has_null_key, consecutive = walk->consecutive;
    int32_t i = walk->done;
    while (i < to) {
        int reason = read_fields(&at, end, &record, &stop);
        if (__builtin_expect(reason, 0)) {
            walk->bad_record = i;
            return reason;
        }
        at = record.headers;
        if (__builtin_expect(record.header_count != 0, 0)) {
            if (record.header_count > MANY_HEADERS && record.header_count <= stop - at) {
                walk->headers_left = record.header_count;
                walk->record_end = stop;
                stop = at;
                to = i + 1;
            } else {
                at = skip_headers(at, stop, record.header_count);
            }
        }
        if (__builtin_expect(at != stop, 0)) {
            walk->bad_record = i;
            return at == NULL ? REASON_HEADERS : REASON_RECORD_END;
        }
        int64_t timestamp = add_wrapping(base_timestamp, record.timestamp_delta);
        if (timestamp > max_timestamp) max_timestamp = timestamp;
        if (timestamp < min_timestamp && timestamp != NO_TIMESTAMP) min_timestamp = timestamp;
        has_null_key |= record.key == NULL;
        if (record.offset_delta != i && consecutive) {
            consecutive = 0;
            walk->bad_record = i;
        }
        i++;
    }
    *p = at;
    walk->max_timestamp = max_timestamp;
    walk->min_timestamp = min_timestamp;
    walk->has_null_key = has_null_key;
    walk->consecutive = consecutive;
    walk->done = i;
    return REASON_NONE;
}

/* Walks up to `most` more headers of the last record, and moves *p past them. Returns a BatchReason, 0 if
 * good. */
static inline int walk_headers(const uint8_t **p, int64_t most, RecordWalk *walk) {
    int64_t count = walk->headers_left < most ? walk->headers_left : most;
    const uint8_t *at = skip_headers(*p, walk->record_end, count);
    int reason = at == NULL ? REASON_HEADERS : REASON_NONE;
    if (reason == REASON_NONE) {
        *p = at;
        walk->headers_left -= count;
        if (walk->headers_left == 0 && at != walk->record_end) reason = REASON_RECORD_END;
    }
    if (reason != REASON_NONE) walk->bad_record = walk->done - 1;
    return reason;
}

static inline void end_walk(RecordWalk *walk) {
    /* A record may have the largest timestamp that there is: then `max_timestamp` is that, too. */
    if (walk->min_timestamp == INT64_MAX && walk->max_timestamp != INT64_MAX)
        walk->min_timestamp = NO_TIMESTAMP;
}

/* Walks `count` records, which must fill [p, end) exactly. Returns a BatchReason, 0 if good. */
static inline int walk_records(
    const uint8_t *p, const uint8_t *end, int32_t count, int64_t base_timestamp, RecordWalk *walk) {
    int reason = REASON_NONE;
    begin_walk(walk);
    while (reason == REASON_NONE && (walk->done < count || walk->headers_left)) {
        if (walk->headers_left) reason = walk_headers(&p, INT64_MAX, walk);
        else reason = walk_some(&p, end, count, base_timestamp, walk);
    }
    end_walk(walk);
    if (reason != REASON_NONE) return reason;
    return p == end ? REASON_NONE : REASON_BATCH_END;
}

/* ---- a batch from a producer ---- */

static inline int refuse(BatchInfo *info, int verdict, int reason) {
    info->reason = reason;
    return verdict;
}

/* Finds the batch at p, like Kafka's ByteBufferLogInputStream. Returns OK (a whole batch), TRAILING (a piece
 * of one, or nothing) or CORRUPT. */
static inline int frame_batch(const uint8_t *p, int64_t n, int64_t *length, int *reason) {
    *reason = REASON_NO_BATCH;
    *length = 0;
    if (n < LENGTH_COUNTS_FROM) return BATCH_TRAILING;
    int32_t counted = (int32_t)load_u32(p + BATCH_LENGTH_AT);
    if (counted < SMALLEST_BATCH_LENGTH) {
        *reason = REASON_LENGTH;
        return BATCH_CORRUPT;
    }
    if (n < MAGIC_ENDS_AT) return BATCH_TRAILING;
    if (p[MAGIC_AT] > CURRENT_MAGIC) {
        *reason = REASON_UNKNOWN_MAGIC;
        return BATCH_CORRUPT;
    }
    *length = (int64_t)counted + LENGTH_COUNTS_FROM;
    if (*length > n) return BATCH_TRAILING;
    *reason = REASON_NONE;
    return BATCH_OK;
}

/* Reads the fields of the header at p; checks nothing. */
static inline void read_header(const uint8_t *p, int32_t length, BatchInfo *info) {
    memset(info, 0, sizeof *info);
    info->bad_record = -1;
    info->length = length;
    info->count = (int32_t)load_u32(p + RECORD_COUNT_AT);
    info->last_offset_delta = (int32_t)load_u32(p + LAST_OFFSET_DELTA_AT);
    info->base_sequence = (int32_t)load_u32(p + BASE_SEQUENCE_AT);
    info->base_timestamp = (int64_t)load_u64(p + BASE_TIMESTAMP_AT);
    info->header_max_timestamp = info->max_timestamp = (int64_t)load_u64(p + MAX_TIMESTAMP_AT);
    info->min_timestamp = NO_TIMESTAMP;
    info->producer_id = (int64_t)load_u64(p + PRODUCER_ID_AT);
    info->producer_epoch = (int16_t)load_u16(p + PRODUCER_EPOCH_AT);
    info->attributes = (int16_t)load_u16(p + ATTRIBUTES_AT);
    info->codec = info->attributes & CODEC_MASK;
}

static inline int crc_matches(const uint8_t *p, int64_t length) {
    return crc32c(0, p + CRC_COVERS_FROM, (size_t)(length - CRC_COVERS_FROM)) == load_u32(p + CRC_AT);
}

/* Finds a batch like frame_batch, and checks that it can be read: it must have the current magic, a whole
 * header and, with check_crc, the right CRC. */
static inline int whole_batch(const uint8_t *p, int64_t n, int check_crc, int64_t *length, int *reason) {
    int framed = frame_batch(p, n, length, reason);
    if (framed != BATCH_OK) return framed;
    if (p[MAGIC_AT] != CURRENT_MAGIC) *reason = REASON_OLD_MAGIC;
    else if (*length < BATCH_HEADER_BYTES) *reason = REASON_SHORT_HEADER;
    else if (check_crc && !crc_matches(p, *length)) *reason = REASON_CRC;
    return *reason == REASON_NONE ? BATCH_OK : BATCH_CORRUPT;
}

/* Checks everything in the header that needs no topic policy, and the CRC, in Kafka's order. p[0, n) has the
 * batch and maybe more. */
static inline int validate_header(const uint8_t *p, int64_t n, int32_t max_message_bytes, BatchInfo *info) {
    int64_t length;
    int reason;
    memset(info, 0, sizeof *info);
    info->bad_record = -1;
    int framed = frame_batch(p, n, &length, &reason);
    if (framed == BATCH_CORRUPT) return refuse(info, BATCH_CORRUPT, reason);
    if (framed == BATCH_TRAILING) return refuse(info, BATCH_INVALID, REASON_NO_BATCH);
    if (p[MAGIC_AT] != CURRENT_MAGIC) return refuse(info, BATCH_INVALID, REASON_OLD_MAGIC);
    if (load_u64(p + BASE_OFFSET_AT) != 0) return refuse(info, BATCH_INVALID, REASON_BASE_OFFSET);
    if (length > max_message_bytes) return refuse(info, BATCH_TOO_LARGE, REASON_SIZE);
    if (length < BATCH_HEADER_BYTES) return refuse(info, BATCH_CORRUPT, REASON_SHORT_HEADER);
    if (!crc_matches(p, length)) return refuse(info, BATCH_CORRUPT, REASON_CRC);
    read_header(p, (int32_t)length, info);
    if (info->codec > LAST_CODEC) return refuse(info, BATCH_INVALID, REASON_CODEC);
    if (info->count <= 0 || (int64_t)info->last_offset_delta + 1 != info->count)
        return refuse(info, BATCH_INVALID, REASON_COUNT);
    if (info->attributes & CONTROL_BIT) return refuse(info, BATCH_INVALID, REASON_CONTROL);
    if (info->producer_id >= 0 && info->base_sequence < 0)
        return refuse(info, BATCH_INVALID, REASON_SEQUENCE);
    return BATCH_OK;
}

/* Judges the bytes after the first batch: nothing (OK), a piece of one (TRAILING), another batch (MORE), or
 * bytes that are no batch (CORRUPT). */
static inline int judge_rest(const uint8_t *p, int64_t n, BatchInfo *info) {
    int64_t length;
    int reason;
    if (n == 0) return BATCH_OK;
    int framed = frame_batch(p, n, &length, &reason);
    if (framed == BATCH_OK) return refuse(info, BATCH_MORE, REASON_SECOND_BATCH);
    return framed == BATCH_CORRUPT ? refuse(info, BATCH_CORRUPT, reason) : BATCH_TRAILING;
}

/* Checks the record data of one partition of a produce request, except what depends on the topic. The
 * timestamps of a batch with LOG_APPEND_TIME_BIT are reported as if the bit were not set: its meaning
 * depends on the topic. */
static inline int validate_batch(const uint8_t *p, int64_t n, int32_t max_message_bytes, BatchInfo *info) {
    int verdict = validate_header(p, n, max_message_bytes, info);
    if (verdict != BATCH_OK) return verdict;
    int rest = judge_rest(p + info->length, n - info->length, info);
    if (rest != BATCH_OK && rest != BATCH_TRAILING) return rest;
    if (info->codec != 0) return rest == BATCH_OK ? BATCH_COMPRESSED : rest;
    RecordWalk walk;
    const uint8_t *records = p + BATCH_HEADER_BYTES;
    int reason = walk_records(records, p + info->length, info->count, info->base_timestamp, &walk);
    if (reason == REASON_NONE && !walk.consecutive) reason = REASON_OFFSET_DELTA;
    if (reason != REASON_NONE) {
        if (reason != REASON_BATCH_END) info->bad_record = walk.bad_record;
        return refuse(info, BATCH_INVALID, reason);
    }
    info->max_timestamp = walk.max_timestamp;
    info->min_timestamp = walk.min_timestamp;
    info->has_null_key = walk.has_null_key;
    info->max_timestamp_wrong = walk.max_timestamp != info->header_max_timestamp;
    return rest;
}

/* ---- changes in place; n is the batch's whole length ---- */

/* Sets base offset and leader epoch. The format keeps both outside of the CRC, so that a broker can. */
static inline void set_offset_and_epoch(uint8_t *p, int64_t base_offset, int32_t leader_epoch) {
    store_u64(p + BASE_OFFSET_AT, (uint64_t)base_offset);
    store_u32(p + LEADER_EPOCH_AT, (uint32_t)leader_epoch);
}

static inline void mend_crc(uint8_t *p, int64_t n) {
    store_u32(p + CRC_AT, crc32c(0, p + CRC_COVERS_FROM, (size_t)(n - CRC_COVERS_FROM)));
}

static inline void stamp_log_append_time(uint8_t *p, int64_t n, int64_t now_ms) {
    store_u16(p + ATTRIBUTES_AT, load_u16(p + ATTRIBUTES_AT) | LOG_APPEND_TIME_BIT);
    store_u64(p + MAX_TIMESTAMP_AT, (uint64_t)now_ms);
    mend_crc(p, n);
}

/* Makes the batch one of CreateTime with its true largest timestamp. */
static inline void set_max_timestamp(uint8_t *p, int64_t n, int64_t max_timestamp_ms) {
    store_u16(p + ATTRIBUTES_AT, load_u16(p + ATTRIBUTES_AT) & (uint16_t)~LOG_APPEND_TIME_BIT);
    store_u64(p + MAX_TIMESTAMP_AT, (uint64_t)max_timestamp_ms);
    mend_crc(p, n);
}

/* Sets the producer of a batch that was built before its producer was known. */
static inline void set_producer(
    uint8_t *p, int64_t n, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
    int transactional) {
    uint16_t attributes = load_u16(p + ATTRIBUTES_AT) & (uint16_t)~TRANSACTIONAL_BIT;
    store_u16(p + ATTRIBUTES_AT, transactional ? attributes | TRANSACTIONAL_BIT : attributes);
    store_u64(p + PRODUCER_ID_AT, (uint64_t)producer_id);
    store_u16(p + PRODUCER_EPOCH_AT, (uint16_t)producer_epoch);
    store_u32(p + BASE_SEQUENCE_AT, (uint32_t)base_sequence);
    mend_crc(p, n);
}

/* ---- a batch of our own ---- */

/* Writes the header and its CRC over the first 61 of n bytes whose records are in place. All fields but base
 * offset and leader epoch come from `info`. */
static inline void write_header(
    uint8_t *p, int64_t n, int64_t base_offset, int32_t leader_epoch, const BatchInfo *info) {
    store_u32(p + BATCH_LENGTH_AT, (uint32_t)(n - LENGTH_COUNTS_FROM));
    set_offset_and_epoch(p, base_offset, leader_epoch);
    p[MAGIC_AT] = CURRENT_MAGIC;
    store_u16(p + ATTRIBUTES_AT, (uint16_t)info->attributes);
    store_u32(p + LAST_OFFSET_DELTA_AT, (uint32_t)info->last_offset_delta);
    store_u64(p + BASE_TIMESTAMP_AT, (uint64_t)info->base_timestamp);
    store_u64(p + MAX_TIMESTAMP_AT, (uint64_t)info->max_timestamp);
    store_u64(p + PRODUCER_ID_AT, (uint64_t)info->producer_id);
    store_u16(p + PRODUCER_EPOCH_AT, (uint16_t)info->producer_epoch);
    store_u32(p + BASE_SEQUENCE_AT, (uint32_t)info->base_sequence);
    store_u32(p + RECORD_COUNT_AT, (uint32_t)info->count);
    mend_crc(p, n);
}

#endif
