/* Compressed record batches: their stream is unpacked into one buffer of bounded size, and walked there.
 *
 * zlib, liblz4 and libzstd are loaded at run time, so that neither a build nor a wheel depends on them. Only
 * functions and structs of their stable interfaces are declared here. Snappy's decoder is in snappy.h.
 *
 * gzip     RFC 1952 members, one or more; what follows and is none is ignored, as Java's GZIPInputStream does
 * snappy   the framing of snappy-java, streams one after the other included, or one bare block
 * lz4      one LZ4 frame that fills the stream. The library checks the checksums that the frame has, and its
 *          content size
 * zstd     Zstandard frames and skippable ones, with windows of at most 128 MiB (in the turn: 8 MiB)
 *
 * `compression.py` takes the same streams. (Kafka: common/compress, DefaultRecordBatch.) */
#ifndef MPBROKER_RECORDS_UNPACK_H
#define MPBROKER_RECORDS_UNPACK_H

#include <dlfcn.h>
#include <stdlib.h>

#include "mpbroker/records/batch.h"
#include "mpbroker/records/snappy.h"

enum {
    UNPACK_ROOM_BYTES = 1 << 20, /* what the batches of one request may unpack to in a turn */

    /* The verdicts of unpack_batch besides BATCH_OK. */
    UNPACK_LEFT = 100,      /* for validation.py: a bad stream, a bad record, or no library */
    UNPACK_TOO_LARGE = 101, /* for validation.py as well: it would unpack to more than the room */
};

/* The results of unpack_step. */
enum UnpackResult {
    UNPACK_DONE = 0,
    UNPACK_MORE = 1,   /* call again */
    UNPACK_BAD = -1,   /* the stream is malformed or cut off */
    UNPACK_OVER = -2,  /* it unpacks to more than the limit */
    UNPACK_NONE = -3,  /* no library for the codec, or no memory for its context */
};

enum UnpackCodec { UNPACK_GZIP = 1, UNPACK_SNAPPY = 2, UNPACK_LZ4 = 3, UNPACK_ZSTD = 4 };

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

enum { Z_GZIP_WINDOW = 31, Z_GOES_ON = 0, Z_MEMBER_ENDED = 1, Z_NO_PROGRESS = -5 };
enum { GZIP_SMALLEST_BYTES = 18 };

/* lz4frame.h, LZ4F_decompressOptions_t. */
typedef struct Lz4Options {
    unsigned stable_dst, skip_checksums, reserved1, reserved0;
} Lz4Options;

enum { LZ4_FRAME_VERSION = 100, LZ4_MAGIC = 0x184D2204 };
/* Version, block independence and dictionary id in the flags of a frame, and the only values Kafka reads. */
enum { LZ4_FLAGS_READ = 0xE3, LZ4_FLAGS_KAFKA = 0x60 };

/* zstd.h, ZSTD_inBuffer and ZSTD_outBuffer. */
typedef struct ZstdIn {
    const void *src;
    size_t size, pos;
} ZstdIn;

typedef struct ZstdOut {
    void *dst;
    size_t size, pos;
} ZstdOut;

enum {
    ZSTD_MAGIC = (int)0xFD2FB528,
    ZSTD_SKIPPABLE_MAGIC = 0x184D2A50, /* and the fifteen that follow it */
    ZSTD_RESET_SESSION = 1,
    ZSTD_WINDOW_LOG_MAX = 100, /* a parameter */
    ZSTD_TURN_WINDOW_LOG = 23, /* up to level 19, whatever the size; a context keeps its largest window */
    ZSTD_WINDOW_LOG = 27,      /* the library's default */
};

/* The functions of the libraries; NULL where a library or one of its functions is missing. */
typedef struct Codecs {
    int (*inflate_init)(ZlibStream *, int window, const char *version, int size);
    int (*inflate)(ZlibStream *, int flush);
    int (*inflate_reset)(ZlibStream *);
    int (*inflate_end)(ZlibStream *);
    size_t (*lz4_create)(void **context, unsigned version);
    size_t (*lz4_free)(void *context);
    size_t (*lz4_decompress)(
        void *context, void *to, size_t *room, const void *from, size_t *size, const Lz4Options *);
    unsigned (*lz4_is_error)(size_t);
    void *(*zstd_create)(void);
    size_t (*zstd_free)(void *context);
    size_t (*zstd_reset)(void *context, int what);
    size_t (*zstd_set)(void *context, int parameter, int value);
    size_t (*zstd_stream)(void *context, ZstdOut *, ZstdIn *);
    unsigned (*zstd_is_error)(size_t);
} Codecs;

/* The contexts of the libraries, and one stream at a time that they unpack. */
typedef struct Unpacker {
    const Codecs *codecs;
    ZlibStream gzip;
    int has_gzip;
    void *lz4, *zstd;
    int lz4_ended;               /* the last frame was whole */

    int codec;
    const uint8_t *p, *end;      /* the rest of the stream */
    uint8_t *out;                /* limit + 1 bytes: by the last one more is detected */
    int64_t at, limit;           /* bytes unpacked so far, and the most there may be */
    int inside;                  /* a member, frame or block has begun and not ended */
    int framed;                  /* snappy: blocks after their sizes */
    const uint8_t *block_end;    /* snappy: of the current block */
    int64_t block_at, block_made, block_bytes;

    uint8_t *room;               /* for the turn: UNPACK_ROOM_BYTES + 1 */
    int64_t left_bytes;          /* what the batches of the current request may still have or unpack to */
    int64_t unpacked_bytes;      /* bytes of their unpacked streams */
    int too_large;               /* a batch of the current request would have unpacked to more */
} Unpacker;

/* ---- libraries and contexts ---- */

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

/* Loads the libraries. Returns a bit for each codec, by its number, that can be unpacked. */
static inline int load_codecs(Codecs *codecs, const char *zlib, const char *lz4, const char *zstd) {
    static const char *const of_zlib[] = {"inflateInit2_", "inflate", "inflateReset", "inflateEnd"};
    static const char *const of_lz4[] = {
        "LZ4F_createDecompressionContext", "LZ4F_freeDecompressionContext",
        "LZ4F_decompress", "LZ4F_isError"};
    static const char *const of_zstd[] = {
        "ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_DCtx_reset", "ZSTD_DCtx_setParameter",
        "ZSTD_decompressStream", "ZSTD_isError"};
    memset(codecs, 0, sizeof *codecs);
    int found = 1 << UNPACK_SNAPPY;
    found |= load_functions(zlib, of_zlib, 4, (void **)&codecs->inflate_init) << UNPACK_GZIP;
    found |= load_functions(lz4, of_lz4, 4, (void **)&codecs->lz4_create) << UNPACK_LZ4;
    found |= load_functions(zstd, of_zstd, 6, (void **)&codecs->zstd_create) << UNPACK_ZSTD;
    return found;
}

static inline void unpacker_init(Unpacker *u, const Codecs *codecs) {
    memset(u, 0, sizeof *u);
    u->codecs = codecs;
}

static inline void unpacker_end(Unpacker *u) {
    if (u->has_gzip) u->codecs->inflate_end(&u->gzip);
    if (u->lz4 != NULL) u->codecs->lz4_free(u->lz4);
    if (u->zstd != NULL) u->codecs->zstd_free(u->zstd);
    free(u->room);
    memset(u, 0, sizeof *u);
}

/* Makes the context of the codec, or makes it forget the stream before. Returns 0 without one. */
static inline int ready_context(Unpacker *u, int codec) {
    const Codecs *codecs = u->codecs;
    switch (codec) {
    case UNPACK_GZIP: /* reset at the start of each member */
        if (codecs->inflate == NULL) return 0;
        if (!u->has_gzip)
            u->has_gzip = codecs->inflate_init(&u->gzip, Z_GZIP_WINDOW, "1", sizeof u->gzip) == 0;
        return u->has_gzip;
    case UNPACK_SNAPPY: return 1;
    case UNPACK_LZ4:
        if (codecs->lz4_decompress == NULL) return 0;
        if (u->lz4 != NULL && !u->lz4_ended) {
            /* A reset does not forget the content size of a frame that did not end (1.9.4). */
            codecs->lz4_free(u->lz4);
            u->lz4 = NULL;
        }
        u->lz4_ended = 0;
        if (u->lz4 == NULL && codecs->lz4_is_error(codecs->lz4_create(&u->lz4, LZ4_FRAME_VERSION)))
            u->lz4 = NULL;
        return u->lz4 != NULL;
    case UNPACK_ZSTD:
        if (codecs->zstd_stream == NULL) return 0;
        if (u->zstd != NULL) {
            codecs->zstd_reset(u->zstd, ZSTD_RESET_SESSION);
            return 1;
        }
        u->zstd = codecs->zstd_create();
        return u->zstd != NULL && !codecs->zstd_is_error(codecs->zstd_set(
            u->zstd, ZSTD_WINDOW_LOG_MAX, u->room == NULL ? ZSTD_WINDOW_LOG : ZSTD_TURN_WINDOW_LOG));
    default: return 0;
    }
}

/* ---- one stream, a piece at a time ---- */

static inline uint32_t little_u32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return x;
}

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Returns whether a member begins at p; one shorter than a header, a block and a trailer is ignored. */
static inline int gzip_member_begins(const uint8_t *p, int64_t n) {
    return n > GZIP_SMALLEST_BYTES && p[0] == 0x1F && p[1] == 0x8B && p[2] == 8;
}

static inline int step_gzip(Unpacker *u, int64_t most) {
    const uint8_t *fed = u->p + smaller(most, u->end - u->p);
    int64_t stop = smaller(u->at + most, u->limit + 1);
    while (u->at < stop && (u->p < fed || u->inside)) {
        if (!u->inside && u->codecs->inflate_reset(&u->gzip) != 0) return UNPACK_BAD;
        u->inside = 1;
        u->gzip.next_in = u->p;
        u->gzip.avail_in = (unsigned)(fed - u->p);
        u->gzip.next_out = u->out + u->at;
        u->gzip.avail_out = (unsigned)(stop - u->at);
        int result = u->codecs->inflate(&u->gzip, 0);
        u->p = u->gzip.next_in;
        u->at = u->gzip.next_out - u->out;
        if (result == Z_NO_PROGRESS) {
            if (u->p == u->end) return UNPACK_BAD;
            break;
        }
        if (result != Z_GOES_ON && result != Z_MEMBER_ENDED) return UNPACK_BAD;
        u->inside = result == Z_GOES_ON;
        if (!u->inside && !gzip_member_begins(u->p, u->end - u->p)) u->p = u->end;
    }
    if (u->at > u->limit) return UNPACK_OVER;
    return u->p == u->end && !u->inside ? UNPACK_DONE : UNPACK_MORE;
}

/* Returns whether a frame for Kafka's clients begins at p: of version 1, without a dictionary, with blocks
 * that do not depend on each other (Kafka: Lz4BlockInputStream.FLG). */
static inline int lz4_frame_begins(const uint8_t *p, int64_t n) {
    return n > 4 && little_u32(p) == LZ4_MAGIC && (p[4] & LZ4_FLAGS_READ) == LZ4_FLAGS_KAFKA;
}

static inline int step_lz4(Unpacker *u, int64_t most) {
    const Lz4Options options = {1, 0, 0, 0}; /* unpacked bytes stay in place until the end */
    size_t room = (size_t)(smaller(u->at + most, u->limit + 1) - u->at);
    size_t size = (size_t)smaller(most, u->end - u->p);
    if (!u->inside && !lz4_frame_begins(u->p, u->end - u->p)) return UNPACK_BAD;
    u->inside = 1;
    size_t hint = u->codecs->lz4_decompress(u->lz4, u->out + u->at, &room, u->p, &size, &options);
    if (u->codecs->lz4_is_error(hint)) return UNPACK_BAD;
    u->p += size;
    u->at += (int64_t)room;
    if (u->at > u->limit) return UNPACK_OVER;
    u->lz4_ended = hint == 0;
    if (hint == 0) return u->p == u->end ? UNPACK_DONE : UNPACK_BAD;
    return size == 0 && room == 0 ? UNPACK_BAD : UNPACK_MORE;
}

/* Returns whether a frame begins at p that any build of the library reads. Frames of versions before 1.0 are
 * optional in it. */
static inline int zstd_frame_begins(const uint8_t *p, int64_t n) {
    if (n < 4) return 0;
    uint32_t magic = little_u32(p);
    return magic == (uint32_t)ZSTD_MAGIC || (magic & 0xFFFFFFF0u) == ZSTD_SKIPPABLE_MAGIC;
}

/* A call ends at the end of a frame, and frames may be tiny. */
static inline int step_zstd(Unpacker *u, int64_t most) {
    const uint8_t *fed = u->p + smaller(most, u->end - u->p);
    int64_t stop = smaller(u->at + most, u->limit + 1);
    do {
        ZstdIn in = {u->p, (size_t)(fed - u->p), 0};
        ZstdOut out = {u->out + u->at, (size_t)(stop - u->at), 0};
        if (!u->inside && !zstd_frame_begins(u->p, u->end - u->p)) return UNPACK_BAD;
        size_t hint = u->codecs->zstd_stream(u->zstd, &out, &in);
        if (u->codecs->zstd_is_error(hint)) return UNPACK_BAD;
        u->p += in.pos;
        u->at += (int64_t)out.pos;
        u->inside = hint != 0;
        if (u->at > u->limit) return UNPACK_OVER;
        if (in.pos == 0 && out.pos == 0) return UNPACK_BAD;
    } while (u->p < fed && u->at < stop);
    return u->p == u->end && !u->inside ? UNPACK_DONE : UNPACK_MORE;
}

enum { SNAPPY_JAVA_BYTES = 16 }; /* magic and two versions, before blocks */

static inline int snappy_java_begins(const uint8_t *p, int64_t n) {
    static const uint8_t magic[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};
    return n >= 8 && memcmp(p, magic, 8) == 0;
}

/* Begins the snappy block at u->p, that of another stream included. Fewer bytes than a size are ignored. */
static inline int snappy_begin(Unpacker *u) {
    u->block_end = u->end;
    if (u->framed) {
        while (snappy_java_begins(u->p, u->end - u->p)) {
            if (u->end - u->p < SNAPPY_JAVA_BYTES) return UNPACK_BAD;
            u->p += SNAPPY_JAVA_BYTES;
        }
        if (u->end - u->p < 4) return UNPACK_DONE;
        int64_t size = (int32_t)load_u32(u->p);
        u->p += 4;
        if (size <= 0 || size > u->end - u->p) return UNPACK_BAD;
        u->block_end = u->p + size;
    }
    u->block_bytes = snappy_size(&u->p, u->block_end);
    if (u->block_bytes < 0) return UNPACK_BAD;
    if (u->block_bytes > u->limit - u->at) return UNPACK_OVER;
    u->block_at = u->at;
    u->block_made = 0;
    u->inside = 1;
    return UNPACK_MORE;
}

static inline int step_snappy(Unpacker *u, int64_t most) {
    int64_t stop = u->at + most;
    while (u->at < stop) {
        int begun = u->inside ? UNPACK_MORE : snappy_begin(u);
        if (begun != UNPACK_MORE) return begun;
        int left = snappy_elements(
            &u->p, u->block_end, u->out + u->block_at, &u->block_made, u->block_bytes, stop - u->at);
        if (left < 0) return UNPACK_BAD;
        u->at = u->block_at + u->block_made;
        if (left) return UNPACK_MORE;
        u->inside = 0;
        if (u->p == u->end) return UNPACK_DONE;
    }
    return UNPACK_MORE;
}

/* Begins to unpack [p, p + n) to `out`, which has room for limit + 1 bytes. */
static inline int unpack_begin(
    Unpacker *u, int codec, const uint8_t *p, int64_t n, uint8_t *out, int64_t limit) {
    u->codec = codec;
    u->p = p;
    u->end = p + n;
    u->out = out;
    u->at = 0;
    u->limit = limit;
    u->inside = u->framed = 0;
    if (!ready_context(u, codec)) return UNPACK_NONE;
    if (n == 0) return UNPACK_BAD;
    u->framed = codec == UNPACK_SNAPPY && snappy_java_begins(p, n);
    return UNPACK_MORE;
}

/* Unpacks about `most` more bytes, and reads no more than these of gzip, lz4 and zstd. */
static inline int unpack_step(Unpacker *u, int64_t most) {
    switch (u->codec) {
    case UNPACK_GZIP: return step_gzip(u, most);
    case UNPACK_SNAPPY: return step_snappy(u, most);
    case UNPACK_LZ4: return step_lz4(u, most);
    default: return step_zstd(u, most);
    }
}

/* ---- for the produce turn: batches at once ---- */

static inline int unpacker_add_room(Unpacker *u) {
    u->room = malloc(UNPACK_ROOM_BYTES + 1);
    u->left_bytes = UNPACK_ROOM_BYTES;
    return u->room != NULL;
}

/* Begins with a request: its batches may unpack to UNPACK_ROOM_BYTES in all. */
static inline void unpacker_reset(Unpacker *u) {
    u->left_bytes = UNPACK_ROOM_BYTES;
    u->unpacked_bytes = 0;
    u->too_large = 0;
}

static inline int unpack_whole(Unpacker *u, int codec, const uint8_t *p, int64_t n, int64_t limit) {
    int result = unpack_begin(u, codec, p, n, u->room, limit);
    while (result == UNPACK_MORE) result = unpack_step(u, UNPACK_ROOM_BYTES + 1);
    return result;
}

/* Unpacks and walks the records of the batch at p, for which validate_batch returned BATCH_COMPRESSED, and
 * fills `info` as the latter does for plain records. Returns BATCH_OK, UNPACK_LEFT or UNPACK_TOO_LARGE. A
 * request's work is bounded by the room: a batch takes its own size of it, or its unpacked size, if that is
 * larger. So streams that unpack to nothing take something, too. */
static inline int unpack_batch(Unpacker *u, const uint8_t *p, BatchInfo *info) {
    int64_t n = info->length - BATCH_HEADER_BYTES, limit = u->left_bytes;
    if (n > limit || (int64_t)info->count * SMALLEST_RECORD_BYTES > limit) {
        u->too_large = 1;
        return UNPACK_TOO_LARGE;
    }
    int result = unpack_whole(u, info->codec, p + BATCH_HEADER_BYTES, n, limit);
    if (result == UNPACK_OVER) u->too_large = 1;
    if (result != UNPACK_DONE) return result == UNPACK_OVER ? UNPACK_TOO_LARGE : UNPACK_LEFT;
    RecordWalk walk;
    int reason = walk_records(u->room, u->room + u->at, info->count, info->base_timestamp, &walk);
    if (reason != REASON_NONE || !walk.consecutive) return UNPACK_LEFT;
    u->left_bytes -= u->at > n ? u->at : n;
    u->unpacked_bytes += u->at;
    info->max_timestamp = walk.max_timestamp;
    info->min_timestamp = walk.min_timestamp;
    info->has_null_key = walk.has_null_key;
    info->max_timestamp_wrong = walk.max_timestamp != info->header_max_timestamp;
    return BATCH_OK;
}

#endif
