/* Zstandard frames that are made a piece at a time, with libzstd loaded at run time.
 *
 * The size of the content is given beforehand. Without it the tables of high levels take hundreds of
 * megabytes. */
#ifndef MPBROKER_RECORDS_PACK_H
#define MPBROKER_RECORDS_PACK_H

#include "mpbroker/records/unpack.h"

enum {
    ZSTD_COMPRESSION_LEVEL = 100, /* a parameter */
    ZSTD_CONTINUE = 0,
    ZSTD_FLUSH = 1,
    ZSTD_END = 2,
    /* From this level on a block of 128 KiB takes up to 100 ms, so each piece is a block of its own. */
    ZSTD_SLOW_LEVEL = 16,
};

typedef struct ZstdPacker {
    void *(*create)(void);
    size_t (*release)(void *context);
    size_t (*set)(void *context, int parameter, int value);
    size_t (*pledge)(void *context, unsigned long long size);
    size_t (*bound)(size_t size);
    size_t (*stream)(void *context, ZstdOut *, ZstdIn *, int end);
    unsigned (*is_error)(size_t);
    void *context;
    int is_slow;
} ZstdPacker;

/* Returns 1 if the library is there. */
static inline int zstd_packer_load(ZstdPacker *z, const char *library) {
    static const char *const names[] = {
        "ZSTD_createCCtx", "ZSTD_freeCCtx", "ZSTD_CCtx_setParameter", "ZSTD_CCtx_setPledgedSrcSize",
        "ZSTD_compressBound", "ZSTD_compressStream2", "ZSTD_isError"};
    memset(z, 0, sizeof *z);
    return load_functions(library, names, 7, (void **)&z->create);
}

static inline int zstd_packer_begin(ZstdPacker *z, int level, int64_t size) {
    z->is_slow = level >= ZSTD_SLOW_LEVEL;
    z->context = z->create();
    if (z->context == NULL) return 0;
    if (z->is_error(z->set(z->context, ZSTD_COMPRESSION_LEVEL, level))) return 0;
    return !z->is_error(z->pledge(z->context, (unsigned long long)size));
}

static inline void zstd_packer_end(ZstdPacker *z) {
    if (z->context != NULL) z->release(z->context);
    z->context = NULL;
}

/* Packs [p, p + n) to [to, to + room), which must have room for all that is left of the frame. `last` ends
 * it. Returns how many bytes that made, or -1. */
static inline int64_t zstd_pack(
    ZstdPacker *z, const uint8_t *p, int64_t n, int last, uint8_t *to, int64_t room) {
    ZstdIn in = {p, (size_t)n, 0};
    ZstdOut out = {to, (size_t)room, 0};
    int how = last ? ZSTD_END : z->is_slow ? ZSTD_FLUSH : ZSTD_CONTINUE;
    size_t left = z->stream(z->context, &out, &in, how);
    if (z->is_error(left) || in.pos != in.size || (last && left != 0)) return -1;
    return (int64_t)out.pos;
}

#endif
