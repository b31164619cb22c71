"""Declares functions of batch.h that load and store big-endian numbers."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "mpbroker/records/batch.h" nogil:
    uint16_t load_u16(const uint8_t *p) noexcept
    uint32_t load_u32(const uint8_t *p) noexcept
    uint64_t load_u64(const uint8_t *p) noexcept
    void store_u16(uint8_t *p, uint16_t x) noexcept
    void store_u32(uint8_t *p, uint32_t x) noexcept
    void store_u64(uint8_t *p, uint64_t x) noexcept
