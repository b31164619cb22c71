/* Appends the records of one batch to columns in Arrow's layout.
 *
 * A column that is not wanted has NULL for its buffers. The caller makes room before each batch: for `count`
 * more rows, and for as many bytes more in each data buffer as the stream of records has (three times that
 * for header keys).
 * (Apache Arrow columnar format: validity bits, int32 offsets, data.) */
#ifndef MPBROKER_RECORDS_ARROW_COLUMNS_H
#define MPBROKER_RECORDS_ARROW_COLUMNS_H

#include "mpbroker/records/batch.h"

/* Bytes that may be written after the used part of a data buffer, so that a short field takes one copy of
 * fixed size. */
enum { COPY_SLACK_BYTES = 16 };

typedef struct BinaryColumn {
    int32_t *offsets; /* rows + 1 */
    uint8_t *data;
    uint8_t *validity; /* zeroed by the caller */
    int64_t used;
    int64_t nulls;
} BinaryColumn;

typedef struct ArrowColumns {
    BinaryColumn key;
    BinaryColumn value;
    int64_t *offset;
    int64_t *timestamp_us;
    int32_t *timestamp_type;
    int32_t *header_lists; /* rows + 1 offsets into the header columns */
    uint8_t *header_validity;
    int64_t header_nulls;
    BinaryColumn header_key;
    BinaryColumn header_value;
    int64_t headers;
    int64_t rows;
} ArrowColumns;

static inline void set_bit(uint8_t *bits, int64_t at) { bits[at >> 3] |= (uint8_t)(1u << (at & 7)); }

/* Appends `bytes` bytes, or null if `from` is NULL. `readable`: the bytes at `from` that may be read. */
PER_FIELD void append_binary(
    BinaryColumn *column, int64_t row, const uint8_t *from, int64_t bytes, int64_t readable) {
    column->offsets[row] = (int32_t)column->used;
    if (from == NULL) {
        column->nulls++;
        return;
    }
    uint8_t *to = column->data + column->used;
    if (bytes <= COPY_SLACK_BYTES && readable >= COPY_SLACK_BYTES)
        memcpy(to, from, COPY_SLACK_BYTES);
    else
        memcpy(to, from, (size_t)bytes);
    column->used += bytes;
    set_bit(column->validity, row);
}

/* Returns the length of the UTF-8 character at p, or minus the length of the malformed part to be replaced
 * (Unicode: substitution of maximal subparts, as Java and Python do). */
static inline int utf8_character(const uint8_t *p, const uint8_t *end) {
    uint8_t lead = *p, low = 0x80, high = 0xbf;
    int more;
    if (lead < 0x80) return 1;
    if (lead >= 0xc2 && lead <= 0xdf) more = 1;
    else if (lead >= 0xe0 && lead <= 0xef) more = 2;
    else if (lead >= 0xf0 && lead <= 0xf4) more = 3;
    else return -1;
    if (lead == 0xe0) low = 0xa0;
    else if (lead == 0xed) high = 0x9f;
    else if (lead == 0xf0) low = 0x90;
    else if (lead == 0xf4) high = 0x8f;
    for (int i = 1; i <= more; i++) {
        if (p + i >= end || p[i] < low || p[i] > high) return -i;
        low = 0x80;
        high = 0xbf;
    }
    return more + 1;
}

/* Appends text, with U+FFFD for malformed parts: Arrow's strings must be UTF-8, header keys of clients need
 * not be. */
static inline void append_text(BinaryColumn *column, int64_t row, const uint8_t *from, int64_t bytes) {
    const uint8_t *end = from + bytes;
    column->offsets[row] = (int32_t)column->used;
    uint8_t *to = column->data + column->used;
    while (from < end) {
        int size = utf8_character(from, end);
        if (size > 0) {
            memcpy(to, from, (size_t)size);
            to += size;
            from += size;
        } else {
            memcpy(to, "\xef\xbf\xbd", 3);
            to += 3;
            from -= size;
        }
    }
    column->used = to - column->data;
}

static inline int64_t milliseconds_as_us(int64_t ms) {
    int64_t us;
    if (__builtin_mul_overflow(ms, 1000, &us)) return ms < 0 ? INT64_MIN : INT64_MAX;
    return us;
}

/* Appends the headers of a record that read_record accepted. */
static inline void append_headers(ArrowColumns *columns, const RecordView *record, const uint8_t *end) {
    const uint8_t *at = record->headers;
    columns->header_lists[columns->rows] = (int32_t)columns->headers;
    if (record->header_count == 0) {
        columns->header_nulls++;
        return;
    }
    set_bit(columns->header_validity, columns->rows);
    for (int64_t i = 0; i < record->header_count; i++) {
        const uint8_t *field;
        int64_t bytes = read_bytes(&at, end, &field);
        append_text(&columns->header_key, columns->headers, field, bytes);
        bytes = read_bytes(&at, end, &field);
        append_binary(&columns->header_value, columns->headers, field, bytes, end - field);
        columns->headers++;
    }
}

/* Appends the records of the stream [p, end) with offsets in [lo, hi). Returns a BatchReason, 0 if good. */
static inline int append_records(
    ArrowColumns *columns, const uint8_t *p, const uint8_t *end, const BatchInfo *info, int64_t base_offset,
    int64_t lo, int64_t hi) {
    RecordView record;
    int stamped = (info->attributes & LOG_APPEND_TIME_BIT) != 0;
    for (int32_t i = 0; i < info->count; i++) {
        int reason = read_record(&p, end, &record);
        if (__builtin_expect(reason, 0)) return reason;
        int64_t offset = add_wrapping(base_offset, record.offset_delta);
        if (offset < lo || offset >= hi) continue;
        int64_t row = columns->rows;
        if (columns->key.offsets)
            append_binary(&columns->key, row, record.key, record.key_bytes, end - record.key);
        if (columns->value.offsets)
            append_binary(&columns->value, row, record.value, record.value_bytes, end - record.value);
        if (columns->offset) columns->offset[row] = offset;
        if (columns->timestamp_us)
            columns->timestamp_us[row] = milliseconds_as_us(
                stamped ? info->max_timestamp : add_wrapping(info->base_timestamp, record.timestamp_delta));
        if (columns->timestamp_type) columns->timestamp_type[row] = stamped;
        if (columns->header_lists) append_headers(columns, &record, p);
        columns->rows++;
    }
    return p == end ? REASON_NONE : REASON_BATCH_END;
}

/* Returns the number of headers of the records. append_records reports malformed ones. */
static inline int64_t count_headers(const uint8_t *p, const uint8_t *end, int32_t count) {
    RecordView record;
    int64_t headers = 0;
    for (int32_t i = 0; i < count && read_record(&p, end, &record) == REASON_NONE; i++)
        headers += record.header_count;
    return headers;
}

#endif
