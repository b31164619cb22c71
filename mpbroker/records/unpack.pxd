# Compressed batches for other Cython modules; unpack.h has the descriptions and the code.
from libc.stdint cimport int32_t, int64_t, uint8_t

from mpbroker.records.batch cimport BatchInfo


cdef extern from "mpbroker/records/unpack.h" nogil:
    enum:
        UNPACK_ROOM_BYTES
        UNPACK_LEFT
        UNPACK_TOO_LARGE

    ctypedef struct Codecs:
        pass

    ctypedef struct Unpacker:
        int64_t left_bytes
        int too_large
        int64_t bytes

    int load_codecs(Codecs *codecs, const char *zlib, const char *lz4, const char *zstd)
    int unpacker_begin(Unpacker *u, const Codecs *codecs)
    void unpacker_end(Unpacker *u)
    void unpacker_reset(Unpacker *u)
    int unpack_batch(Unpacker *u, const uint8_t *p, BatchInfo *info)


cdef class BatchUnpacker:
    cdef Unpacker ref
    cdef Codecs codecs
    cdef readonly int found
