/* The decoder of raw Snappy blocks (github.com/google/snappy, format_description.txt).
 *
 *     block    varint with the unpacked size, then elements
 *     element  tag, whose lowest two bits are its kind:
 *              0 literal: length - 1 in the upper six bits, 60 to 63: in the 1 to 4 bytes that follow
 *              1 copy of 4 to 11 bytes, 11 bits of offset    2 copy, 16 bits    3 copy, 32 bits
 *
 * A copy repeats bytes that were unpacked before; it may overlap with its target. Nothing here reads or
 * writes outside of the bytes it was given. */
#ifndef MPBROKER_RECORDS_SNAPPY_H
#define MPBROKER_RECORDS_SNAPPY_H

#include <stdint.h>
#include <string.h>

/* Reads the unpacked size of a block and moves *p past it. Returns -1 if it exceeds 32 bits. */
static inline int64_t snappy_size(const uint8_t **p, const uint8_t *end) {
    uint64_t size = 0;
    for (int shift = 0; shift < 35 && *p < end; shift += 7) {
        uint8_t byte = *(*p)++;
        size |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return size <= UINT32_MAX ? (int64_t)size : -1;
    }
    return -1;
}

/* Repeats `length` bytes that lie `offset` before `to`. There are `room` bytes from `to` on. */
static inline void snappy_repeat(uint8_t *to, int64_t offset, int64_t length, int64_t room) {
    const uint8_t *from = to - offset;
    if (offset >= 8 && room >= length + 8) { /* eight at a time; the rest is overwritten later */
        for (int64_t i = 0; i < length; i += 8) memcpy(to + i, from + i, 8);
        return;
    }
    if (offset >= length) {
        memcpy(to, from, (size_t)length);
        return;
    }
    while (length-- > 0) *to++ = *from++;
}

/* Unpacks elements from *from on to [out + *made, out + size), until they end or `most` bytes were made; one
 * literal may exceed that. Returns 1 if elements are left, 0 if they have made `size` bytes, or -1 if they
 * are malformed or make fewer or more. */
static inline int snappy_elements(
    const uint8_t **from, const uint8_t *end, uint8_t *out, int64_t *made, int64_t size, int64_t most) {
    const uint8_t *p = *from;
    int64_t at = *made, stop = size - at > most ? at + most : size;
    while (p < end && (at < stop || stop == size)) {
        uint32_t tag = *p++, kind = tag & 3;
        int64_t length = (tag >> 2) + 1, offset = 0;
        if (kind == 0) {
            int more = length > 60 ? (int)length - 60 : 0;
            if (more && end - p < 4) return -1; /* a literal that needs them has 61 bytes at the least */
            if (more) length = 1;
            for (int i = 0; i < more; i++) length += (int64_t)*p++ << (8 * i);
            if (length > end - p || length > size - at) return -1;
            if (length <= 16 && end - p >= 16 && size - at >= 16) memcpy(out + at, p, 16);
            else memcpy(out + at, p, (size_t)length);
            p += length;
            at += length;
            continue;
        }
        int more = kind == 1 ? 1 : kind == 2 ? 2 : 4;
        if (end - p < more) return -1;
        if (kind == 1) {
            length = ((tag >> 2) & 7) + 4;
            offset = (int64_t)(tag >> 5) << 8 | p[0];
        } else if (kind == 2) {
            offset = p[0] | (int64_t)p[1] << 8;
        } else {
            offset = p[0] | (int64_t)p[1] << 8 | (int64_t)p[2] << 16 | (int64_t)p[3] << 24;
        }
        p += more;
        if (offset == 0 || offset > at || length > size - at) return -1;
        snappy_repeat(out + at, offset, length, size - at);
        at += length;
    }
    *from = p;
    *made = at;
    if (p < end) return 1;
    return at == size ? 0 : -1;
}

#endif
