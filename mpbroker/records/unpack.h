/* Compressed record batches, unpacked into one buffer of bounded size and walked there.
 *
 * zlib, liblz4 and libzstd are loaded at run time, so that neither a build nor a wheel depends on them; only
 * functions and structs of their stable interfaces are declared here. Whatever this code does not accept is
 * left to `validation.py`, which decides and says why. So it accepts nothing that the latter refuses, but for
 * damage in a zstd frame that one version of the library detects and another one does not. It takes fewer
 * streams: no lz4 frame without its end or with bytes behind it, no zstd window above 8 MiB.
 * (Kafka: common/compress, DefaultRecordBatch.) */
#ifndef MPBROKER_RECORDS_UNPACK_H
#define MPBROKER_RECORDS_UNPACK_H

#include <dlfcn.h>
#include <stdlib.h>

#include "mpbroker/records/batch.h"
#include "mpbroker/records/snappy.h"

enum {
    UNPACK_ROOM_BYTES = 1 << 20, /* what the batches of one request may unpack to */
    UNPACK_KEPT_BYTES = 4 << 20, /* a zstd context that has grown beyond this is given back */

    /* The verdicts of unpack_batch besides BATCH_OK. */
    UNPACK_LEFT = 100,      /* for validation.py: a bad stream, a bad record, or no library */
    UNPACK_TOO_LARGE = 101, /* for validation.py as well: it would unpack to more than the room */
};

/* Results of the unpack functions below 0. */
#define UNPACK_BAD (-1)
#define UNPACK_OVER (-2)

/* zlib.h, z_stream; inflateInit2_ refuses it if the size is another one. */
typedef struct ZlibStream {
    const uint8_t *next_in;
    unsigned avail_in;
    unsigned long total_in;
    uint8_t *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *msg;
    void *state, *zalloc, *zfree, *opaque;
    int data_type;
    unsigned long adler, reserved;
} ZlibStream;

enum { Z_GZIP_WINDOW = 31, Z_STREAM_ENDED = 1 };

/* lz4frame.h, LZ4F_decompressOptions_t. */
typedef struct Lz4Options {
    unsigned stable_dst, skip_checksums, reserved1, reserved0;
} Lz4Options;

enum { LZ4_FRAME_VERSION = 100 };

/* zstd.h, ZSTD_inBuffer and ZSTD_outBuffer. */
typedef struct ZstdIn {
    const void *src;
    size_t size, pos;
} ZstdIn;

typedef struct ZstdOut {
    void *dst;
    size_t size, pos;
} ZstdOut;

enum { ZSTD_RESET_SESSION = 1, ZSTD_WINDOW_LOG_MAX = 100, ZSTD_WINDOW_LOG = 23 };

/* The functions of the libraries; NULL where a library or one of its functions is missing. */
typedef struct Codecs {
    int (*inflate_init)(ZlibStream *, int window, const char *version, int size);
    int (*inflate)(ZlibStream *, int flush);
    int (*inflate_reset)(ZlibStream *);
    int (*inflate_end)(ZlibStream *);
    size_t (*lz4_create)(void **context, unsigned version);
    size_t (*lz4_free)(void *context);
    void (*lz4_reset)(void *context);
    size_t (*lz4_decompress)(
        void *context, void *to, size_t *room, const void *from, size_t *size, const Lz4Options *);
    unsigned (*lz4_is_error)(size_t);
    void *(*zstd_create)(void);
    size_t (*zstd_free)(void *context);
    size_t (*zstd_reset)(void *context, int what);
    size_t (*zstd_set)(void *context, int parameter, int value);
    size_t (*zstd_decompress)(void *context, ZstdOut *, ZstdIn *);
    size_t (*zstd_size)(const void *context);
    unsigned (*zstd_is_error)(size_t);
} Codecs;

typedef struct Unpacker {
    const Codecs *codecs;
    uint8_t *room;      /* UNPACK_ROOM_BYTES and one more, by which it is seen that a stream is too large */
    ZlibStream gzip;
    int has_gzip;
    void *lz4, *zstd;
    int64_t left_bytes; /* what the batches of the current request may still unpack to */
    int too_large;      /* a batch of the current request would have unpacked to more */
    int64_t bytes;      /* what the last batch unpacked to */
} Unpacker;

/* Looks the functions up; *into is a pointer each, in the order of `names`. Returns 1 if all are there. */
static inline int load_functions(const char *library, const char *const *names, int count, void **into) {
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (loaded == NULL) return 0;
    for (int i = 0; i < count; i++) {
        into[i] = dlsym(loaded, names[i]);
        if (into[i] == NULL) {
            memset(into, 0, (size_t)count * sizeof *into);
            dlclose(loaded);
            return 0;
        }
    }
    return 1;
}

/* Loads what there is. Returns a bit for each codec, by its number, that can be unpacked. */
static inline int load_codecs(Codecs *codecs, const char *zlib, const char *lz4, const char *zstd) {
    static const char *const of_zlib[] = {"inflateInit2_", "inflate", "inflateReset", "inflateEnd"};
    static const char *const of_lz4[] = {
        "LZ4F_createDecompressionContext", "LZ4F_freeDecompressionContext",
        "LZ4F_resetDecompressionContext", "LZ4F_decompress", "LZ4F_isError"};
    static const char *const of_zstd[] = {
        "ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_DCtx_reset", "ZSTD_DCtx_setParameter",
        "ZSTD_decompressStream", "ZSTD_sizeof_DCtx", "ZSTD_isError"};
    memset(codecs, 0, sizeof *codecs);
    int found = 1 << 2; /* snappy's decoder is here */
    found |= load_functions(zlib, of_zlib, 4, (void **)&codecs->inflate_init) << 1;
    found |= load_functions(lz4, of_lz4, 5, (void **)&codecs->lz4_create) << 3;
    found |= load_functions(zstd, of_zstd, 7, (void **)&codecs->zstd_create) << 4;
    return found;
}

static inline int unpacker_begin(Unpacker *u, const Codecs *codecs) {
    memset(u, 0, sizeof *u);
    u->codecs = codecs;
    u->left_bytes = UNPACK_ROOM_BYTES;
    u->room = malloc(UNPACK_ROOM_BYTES + 1);
    return u->room != NULL;
}

static inline void unpacker_end(Unpacker *u) {
    if (u->has_gzip) u->codecs->inflate_end(&u->gzip);
    if (u->lz4 != NULL) u->codecs->lz4_free(u->lz4);
    if (u->zstd != NULL) u->codecs->zstd_free(u->zstd);
    free(u->room);
    memset(u, 0, sizeof *u);
}

/* The functions below unpack [p, p + n) into the room and return how many bytes that made, at most `limit`,
 * UNPACK_OVER if it would be more, or UNPACK_BAD. */

static inline int64_t unpack_gzip(Unpacker *u, const uint8_t *p, int64_t n, int64_t limit) {
    const Codecs *codecs = u->codecs;
    if (codecs->inflate == NULL) return UNPACK_BAD;
    if (!u->has_gzip) {
        u->has_gzip = codecs->inflate_init(&u->gzip, Z_GZIP_WINDOW, "1", sizeof u->gzip) == 0;
        if (!u->has_gzip) return UNPACK_BAD;
    }
    u->gzip.next_in = p;
    u->gzip.avail_in = (unsigned)n;
    u->gzip.next_out = u->room;
    u->gzip.avail_out = (unsigned)limit + 1;
    do { /* one member */
        if (codecs->inflate_reset(&u->gzip) != 0) return UNPACK_BAD;
        int result = codecs->inflate(&u->gzip, 0);
        if (u->gzip.avail_out == 0) return UNPACK_OVER;
        if (result != Z_STREAM_ENDED) return UNPACK_BAD;
    } while (u->gzip.avail_in);
    return limit + 1 - u->gzip.avail_out;
}

static inline int64_t unpack_lz4(Unpacker *u, const uint8_t *p, int64_t n, int64_t limit) {
    const Codecs *codecs = u->codecs;
    const Lz4Options options = {1, 0, 0, 0}; /* what was unpacked stays where it is until the end */
    int64_t at = 0, total = 0;
    size_t hint = 1;
    if (codecs->lz4_decompress == NULL) return UNPACK_BAD;
    if (u->lz4 != NULL) codecs->lz4_reset(u->lz4);
    else if (codecs->lz4_is_error(codecs->lz4_create(&u->lz4, LZ4_FRAME_VERSION))) {
        u->lz4 = NULL;
        return UNPACK_BAD;
    }
    while (hint != 0) {
        size_t room = (size_t)(limit + 1 - total), size = (size_t)(n - at);
        hint = codecs->lz4_decompress(u->lz4, u->room + total, &room, p + at, &size, &options);
        if (codecs->lz4_is_error(hint)) return UNPACK_BAD;
        at += (int64_t)size;
        total += (int64_t)room;
        if (total > limit) return UNPACK_OVER;
        if (hint != 0 && size == 0 && room == 0) return UNPACK_BAD;
    }
    return at == n ? total : UNPACK_BAD;
}

static inline int64_t zstd_frames(Unpacker *u, const uint8_t *p, int64_t n, int64_t limit) {
    ZstdIn in = {p, (size_t)n, 0};
    ZstdOut out = {u->room, (size_t)limit + 1, 0};
    for (;;) {
        size_t read = in.pos, written = out.pos;
        size_t hint = u->codecs->zstd_decompress(u->zstd, &out, &in);
        if (u->codecs->zstd_is_error(hint)) return UNPACK_BAD;
        if ((int64_t)out.pos > limit) return UNPACK_OVER;
        if (hint == 0 && in.pos == in.size) return (int64_t)out.pos;
        if (in.pos == read && out.pos == written) return UNPACK_BAD;
    }
}

static inline int64_t unpack_zstd(Unpacker *u, const uint8_t *p, int64_t n, int64_t limit) {
    const Codecs *codecs = u->codecs;
    if (n == 0 || codecs->zstd_decompress == NULL) return UNPACK_BAD;
    if (u->zstd == NULL) {
        u->zstd = codecs->zstd_create();
        if (u->zstd == NULL) return UNPACK_BAD;
        codecs->zstd_set(u->zstd, ZSTD_WINDOW_LOG_MAX, ZSTD_WINDOW_LOG);
    }
    codecs->zstd_reset(u->zstd, ZSTD_RESET_SESSION);
    int64_t total = zstd_frames(u, p, n, limit);
    if (codecs->zstd_size(u->zstd) > UNPACK_KEPT_BYTES) {
        codecs->zstd_free(u->zstd);
        u->zstd = NULL;
    }
    return total;
}

static inline int64_t unpack_snappy_block(
    Unpacker *u, const uint8_t *p, const uint8_t *end, int64_t total, int64_t limit) {
    if (p == end) return UNPACK_BAD;
    int64_t size = snappy_size(&p, end);
    if (size < 0) return UNPACK_BAD;
    if (size > limit - total) return UNPACK_OVER;
    return snappy_elements(p, end, u->room + total, size) == 0 ? total + size : UNPACK_BAD;
}

/* snappy-java sends a magic, two versions, and blocks behind their sizes; others send one block. */
static inline int64_t unpack_snappy(Unpacker *u, const uint8_t *p, int64_t n, int64_t limit) {
    static const uint8_t magic[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};
    const uint8_t *end = p + n;
    int64_t total = 0;
    if (n < 8 || memcmp(p, magic, 8) != 0) return unpack_snappy_block(u, p, end, 0, limit);
    if (n < 16) return UNPACK_BAD;
    for (p += 16; p < end && total >= 0;) {
        if (end - p < 4) return UNPACK_BAD;
        int64_t size = (int32_t)load_u32(p);
        p += 4;
        if (size <= 0 || size > end - p) return UNPACK_BAD;
        total = unpack_snappy_block(u, p, p + size, total, limit);
        p += size;
    }
    return total;
}

static inline int64_t unpack_stream(Unpacker *u, int codec, const uint8_t *p, int64_t n, int64_t limit) {
    switch (codec) {
    case 1: return unpack_gzip(u, p, n, limit);
    case 2: return unpack_snappy(u, p, n, limit);
    case 3: return unpack_lz4(u, p, n, limit);
    case 4: return unpack_zstd(u, p, n, limit);
    default: return UNPACK_BAD;
    }
}

/* Begins with a request: its batches may unpack to UNPACK_ROOM_BYTES in all. */
static inline void unpacker_reset(Unpacker *u) {
    u->left_bytes = UNPACK_ROOM_BYTES;
    u->too_large = 0;
}

/* Unpacks and walks the records of the batch at p, of which validate_batch has said BATCH_COMPRESSED, and
 * fills `info` as the latter does for plain records. Returns BATCH_OK, UNPACK_LEFT or UNPACK_TOO_LARGE. The
 * work is bounded by the room, also of a stream that unpacks to nothing. */
static inline int unpack_batch(Unpacker *u, const uint8_t *p, BatchInfo *info) {
    int64_t n = info->length - BATCH_HEADER_BYTES, limit = u->left_bytes;
    if (n > limit || (int64_t)info->count * SMALLEST_RECORD_BYTES > limit) {
        u->too_large = 1;
        return UNPACK_TOO_LARGE;
    }
    int64_t total = unpack_stream(u, info->codec, p + BATCH_HEADER_BYTES, n, limit);
    if (total == UNPACK_OVER) u->too_large = 1;
    if (total < 0) return total == UNPACK_OVER ? UNPACK_TOO_LARGE : UNPACK_LEFT;
    RecordWalk walk;
    int reason = walk_records(u->room, u->room + total, info->count, info->base_timestamp, &walk);
    if (reason != REASON_NONE || !walk.consecutive) return UNPACK_LEFT;
    u->left_bytes -= total;
    u->bytes = total;
    info->max_timestamp = walk.max_timestamp;
    info->min_timestamp = walk.min_timestamp;
    info->has_null_key = walk.has_null_key;
    info->max_timestamp_wrong = walk.max_timestamp != info->header_max_timestamp;
    return BATCH_OK;
}

#endif
