# Compressed batches for other Cython modules; unpack.h has the descriptions and the code.
from libc.stdint cimport int32_t, int64_t, uint8_t

from mpbroker.records.batch cimport BatchInfo


cdef extern from "mpbroker/records/unpack.h" nogil:
    enum:
        UNPACK_ROOM_BYTES
        UNPACK_LEFT
        UNPACK_TOO_LARGE
        UNPACK_DONE
        UNPACK_MORE
        UNPACK_OVER
        UNPACK_NONE

    ctypedef struct Codecs:
        pass

    ctypedef struct Unpacker:
        int64_t at
        int64_t left_bytes
        int64_t unpacked_bytes
        int too_large

    int load_codecs(Codecs *codecs, const char *zlib, const char *lz4, const char *zstd)
    void unpacker_init(Unpacker *u, const Codecs *codecs)
    int unpacker_add_room(Unpacker *u)
    void unpacker_end(Unpacker *u)
    void unpacker_reset(Unpacker *u)
    int unpack_begin(Unpacker *u, int codec, const uint8_t *p, int64_t n, uint8_t *out, int64_t limit)
    int unpack_step(Unpacker *u, int64_t most)
    int unpack_batch(Unpacker *u, const uint8_t *p, BatchInfo *info)


cdef class Libraries:
    cdef Codecs codecs
    cdef readonly int found


cdef class BatchUnpacker:
    cdef Unpacker ref
    cdef Libraries libraries
