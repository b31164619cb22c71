# The record batch of magic 2 for other Cython modules:
#     from mpbroker.records.batch cimport BatchInfo, validate_batch
# batch.h has the layout, the descriptions and the code; C code includes it directly.
from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t


cdef extern from "mpbroker/records/crc32c.h" nogil:
    uint32_t crc32c(uint32_t seed, const uint8_t *p, size_t n) noexcept
    uint32_t crc32c_software(uint32_t crc, const uint8_t *p, size_t n) noexcept


cdef extern from "mpbroker/records/batch.h" nogil:
    cpdef enum:  # cpdef: Python gets them too, from mpbroker.records.batch
        BASE_OFFSET_AT
        BATCH_LENGTH_AT
        LENGTH_COUNTS_FROM
        LEADER_EPOCH_AT
        MAGIC_AT
        MAGIC_ENDS_AT
        CRC_AT
        CRC_COVERS_FROM
        ATTRIBUTES_AT
        LAST_OFFSET_DELTA_AT
        BASE_TIMESTAMP_AT
        MAX_TIMESTAMP_AT
        PRODUCER_ID_AT
        PRODUCER_EPOCH_AT
        BASE_SEQUENCE_AT
        RECORD_COUNT_AT
        BATCH_HEADER_BYTES
        SMALLEST_BATCH_LENGTH
        SMALLEST_RECORD_BYTES
        CURRENT_MAGIC
        CODEC_MASK
        LOG_APPEND_TIME_BIT
        TRANSACTIONAL_BIT
        CONTROL_BIT
        DELETE_HORIZON_BIT
        LAST_CODEC
        NO_TIMESTAMP
        NO_PRODUCER_ID
        NO_SEQUENCE

    cpdef enum:  # BatchVerdict
        BATCH_OK
        BATCH_COMPRESSED
        BATCH_TRAILING
        BATCH_MORE
        BATCH_CORRUPT
        BATCH_INVALID
        BATCH_TOO_LARGE

    enum BatchReason:
        REASON_NONE
        REASON_NO_BATCH
        REASON_LENGTH
        REASON_UNKNOWN_MAGIC
        REASON_OLD_MAGIC
        REASON_BASE_OFFSET
        REASON_SIZE
        REASON_SHORT_HEADER
        REASON_CRC
        REASON_CODEC
        REASON_CONTROL
        REASON_COUNT
        REASON_SEQUENCE
        REASON_SECOND_BATCH
        REASON_RECORD_LENGTH
        REASON_RECORD_FIELD
        REASON_OFFSET_DELTA
        REASON_HEADERS
        REASON_RECORD_END
        REASON_BATCH_END
        COUNT_OF_REASONS "REASON_COUNT_OF_REASONS"

    ctypedef struct BatchInfo:
        int32_t length
        int32_t count
        int32_t last_offset_delta
        int32_t base_sequence
        int64_t base_timestamp
        int64_t max_timestamp
        int64_t min_timestamp
        int64_t header_max_timestamp
        int64_t producer_id
        int16_t producer_epoch
        int16_t attributes
        int codec
        int has_null_key
        int max_timestamp_wrong
        int reason
        int32_t bad_record

    ctypedef struct RecordView:
        int64_t timestamp_delta
        int64_t offset_delta
        const uint8_t *key
        const uint8_t *value
        int64_t key_bytes
        int64_t value_bytes
        const uint8_t *headers
        int64_t header_count

    ctypedef struct RecordWalk:
        int64_t max_timestamp
        int64_t min_timestamp
        int has_null_key
        int consecutive
        int32_t bad_record
        int32_t done
        int64_t headers_left

    int validate_batch(const uint8_t *p, int64_t n, int32_t max_message_bytes, BatchInfo *info) noexcept
    int validate_header(const uint8_t *p, int64_t n, int32_t max_message_bytes, BatchInfo *info) noexcept
    void read_header(const uint8_t *p, int32_t length, BatchInfo *info) noexcept
    bint crc_matches(const uint8_t *p, int64_t length) noexcept
    void write_header(uint8_t *p, int64_t n, int64_t base_offset, int32_t leader_epoch,
                      const BatchInfo *info) noexcept
    int64_t load_i64 "(int64_t)load_u64"(const uint8_t *p) noexcept
    int32_t load_i32 "(int32_t)load_u32"(const uint8_t *p) noexcept
    int whole_batch(const uint8_t *p, int64_t n, bint check_crc, int64_t *length, int *reason) noexcept
    int walk_records(const uint8_t *p, const uint8_t *end, int32_t count, int64_t base_timestamp,
                     RecordWalk *walk) noexcept
    void begin_walk(RecordWalk *walk) noexcept
    int walk_some(const uint8_t **p, const uint8_t *end, int32_t stop, int64_t base_timestamp,
                  RecordWalk *walk) noexcept
    int walk_headers(const uint8_t **p, int64_t most, RecordWalk *walk) noexcept
    void end_walk(RecordWalk *walk) noexcept
    int read_record(const uint8_t **p, const uint8_t *end, RecordView *record) noexcept
    int read_accepted(const uint8_t **p, const uint8_t *end, RecordView *record) noexcept
    int64_t read_bytes(const uint8_t **p, const uint8_t *end, const uint8_t **field) noexcept
    int64_t add_wrapping(int64_t a, int64_t b) noexcept
    int64_t subtract_wrapping(int64_t a, int64_t b) noexcept
    int64_t read_varlong(const uint8_t **p, const uint8_t *end) noexcept
    int64_t read_varint(const uint8_t **p, const uint8_t *end) noexcept
    uint8_t *write_varlong(uint8_t *p, int64_t number) noexcept
    int varlong_bytes(int64_t number) noexcept
    void set_offset_and_epoch(uint8_t *p, int64_t base_offset, int32_t leader_epoch) noexcept
    void stamp_log_append_time(uint8_t *p, int64_t n, int64_t now_ms) noexcept
    void set_max_timestamp(uint8_t *p, int64_t n, int64_t max_timestamp_ms) noexcept
    void mend_crc(uint8_t *p, int64_t n) noexcept
    void set_producer(uint8_t *p, int64_t n, int64_t producer_id, int16_t producer_epoch,
                      int32_t base_sequence, bint transactional) noexcept
