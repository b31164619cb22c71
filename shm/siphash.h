/* SipHash (Aumasson, Bernstein; "SipHash: a fast short-input PRF"): with a secret key no client can choose
 * names or numbers that collide in a table. Words have the machine's byte order, little-endian; hashes never
 * leave the process. */
#ifndef SHM_SIPHASH_H
#define SHM_SIPHASH_H

#include <stdint.h>
#include <string.h>

#define SIP_ROTATE(x, b) (((x) << (b)) | ((x) >> (64 - (b))))

static inline void sip_rounds(uint64_t v[4], int rounds) {
    for (int i = 0; i < rounds; i++) {
        v[0] += v[1]; v[1] = SIP_ROTATE(v[1], 13); v[1] ^= v[0]; v[0] = SIP_ROTATE(v[0], 32);
        v[2] += v[3]; v[3] = SIP_ROTATE(v[3], 16); v[3] ^= v[2];
        v[0] += v[3]; v[3] = SIP_ROTATE(v[3], 21); v[3] ^= v[0];
        v[2] += v[1]; v[1] = SIP_ROTATE(v[1], 17); v[1] ^= v[2]; v[2] = SIP_ROTATE(v[2], 32);
    }
}

static inline uint64_t sip_fold(const uint64_t v[4]) { return v[0] ^ v[1] ^ v[2] ^ v[3]; }

/* SipHash-1-3 with 64 bits, for tables. */
static inline uint64_t siphash64(const void *data, uint64_t count, const uint64_t key[2]) {
    uint64_t v[4] = {
        key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
        key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u,
    };
    const uint8_t *bytes = (const uint8_t *)data;
    uint64_t word, at = 0;
    for (; at + 8 <= count; at += 8) {
        memcpy(&word, bytes + at, 8);
        v[3] ^= word;
        sip_rounds(v, 1);
        v[0] ^= word;
    }
    word = 0;
    if (count > at) memcpy(&word, bytes + at, count - at);
    word |= count << 56;
    v[3] ^= word;
    sip_rounds(v, 1);
    v[0] ^= word;
    v[2] ^= 0xff;
    sip_rounds(v, 3);
    return sip_fold(v);
}

/* SipHash-2-4 with 128 bits: the cleaner keeps this hash in place of a key, where Kafka takes MD5. */
static inline void siphash128(const uint8_t *data, int64_t count, const uint64_t key[2], uint64_t hash[2]) {
    uint64_t v[4] = {
        key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du ^ 0xee,
        key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u,
    };
    uint64_t word;
    int64_t at = 0;
    for (; at + 8 <= count; at += 8) {
        memcpy(&word, data + at, 8);
        v[3] ^= word;
        sip_rounds(v, 2);
        v[0] ^= word;
    }
    word = 0;
    if (count > at) memcpy(&word, data + at, (size_t)(count - at));
    word |= (uint64_t)count << 56;
    v[3] ^= word;
    sip_rounds(v, 2);
    v[0] ^= word;
    v[2] ^= 0xee;
    sip_rounds(v, 4);
    hash[0] = sip_fold(v);
    v[1] ^= 0xdd;
    sip_rounds(v, 4);
    hash[1] = sip_fold(v);
}

#endif
