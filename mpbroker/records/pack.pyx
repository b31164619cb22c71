"""Compresses data to a Zstandard frame, a piece at a time. See `pack.h`."""

from libc.stdint cimport int64_t, uint8_t

import mmap

from mpbroker.records.errors import CompressionError
from mpbroker.records.unpack import LIBRARY_NAMES as _LIBRARY_NAMES


cdef extern from "mpbroker/records/pack.h" nogil:
    ctypedef struct ZstdPacker:
        size_t (*bound)(size_t size)

    int zstd_packer_load(ZstdPacker *z, const char *library)
    int zstd_packer_begin(ZstdPacker *z, int level, int64_t size)
    void zstd_packer_end(ZstdPacker *z)
    int64_t zstd_pack(ZstdPacker *z, const uint8_t *p, int64_t n, int last, uint8_t *to, int64_t room)


cdef class ZstdPacking:
    """A frame of `size` bytes of content. Raises CompressionError without libzstd, or without memory."""

    cdef ZstdPacker ref
    cdef uint8_t[::1] out
    cdef object map
    cdef int64_t left, made

    def __init__(self, int level, int64_t size):
        cdef bytes library = _LIBRARY_NAMES[4].encode()
        zstd_packer_end(&self.ref)
        if not zstd_packer_load(&self.ref, library):
            raise CompressionError(f"zstd: there is no {_LIBRARY_NAMES[4]}")
        if not zstd_packer_begin(&self.ref, level, size):
            raise CompressionError(f"zstd: no context for level {level} and {size} bytes")
        self.left = size
        # A block for each piece takes a header for each, which the bound does not count.
        self.map = mmap.mmap(-1, 2 * self.ref.bound(size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.out = self.map

    def __dealloc__(self):
        zstd_packer_end(&self.ref)

    def add(self, const uint8_t[::1] data) -> None:
        """Compress the next piece. Raises CompressionError if all pieces together exceed `size` bytes."""
        cdef int64_t made = -1
        cdef int64_t n = data.shape[0]
        cdef const uint8_t *p = &data[0] if n else NULL
        if n > self.left:
            raise CompressionError(f"zstd: {n} bytes are more than the {self.left} that are missing")
        self.left -= n
        with nogil:
            made = zstd_pack(
                &self.ref, p, n, self.left == 0, &self.out[self.made], self.out.shape[0] - self.made
            )
        if made < 0:
            raise CompressionError("zstd: the library does not pack this")
        self.made += made

    @property
    def size(self) -> int:
        """Return the number of compressed bytes so far."""
        return self.made

    def finish(self) -> memoryview:
        """Return the frame. Raises CompressionError if pieces are missing."""
        if self.left:
            raise CompressionError(f"zstd: {self.left} bytes of the content are missing")
        return memoryview(self.map)[: self.made]
