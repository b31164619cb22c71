/* CRC-32C (Castagnoli, RFC 3720 B.4), the checksum of a record batch.
 *
 * uint32_t crc32c(uint32_t seed, const uint8_t *p, size_t n)
 *     Returns the CRC of n bytes; seed is the CRC of the bytes before them, or 0.
 *
 * The CRC instruction takes a new word each cycle but needs three to give its result, so long inputs are
 * read as three streams side by side. Their remainders are joined by a carry-less multiplication with
 * x^(8 * distance - 33) mod P: the product of two reflected values comes out multiplied by x, and reducing
 * it through the CRC instruction adds x^32. */
#ifndef MPBROKER_RECORDS_CRC32C_H
#define MPBROKER_RECORDS_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82f63b78u

static inline uint64_t crc32c_word(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* ---- any processor: eight tables, eight bytes a step ---- */

static uint32_t crc32c_table[8][256];
static int crc32c_table_ready;

/* Fills the tables. Threads that do it together write the same values, so only the flag needs ordering. */
static void crc32c_fill_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) ? CRC32C_POLYNOMIAL : 0);
        crc32c_table[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = crc32c_table[k - 1][i];
            crc32c_table[k][i] = (crc >> 8) ^ crc32c_table[0][crc & 0xff];
        }
    __atomic_store_n(&crc32c_table_ready, 1, __ATOMIC_RELEASE);
}

static uint32_t crc32c_software(uint32_t crc, const uint8_t *p, size_t n) {
    if (!__atomic_load_n(&crc32c_table_ready, __ATOMIC_ACQUIRE)) crc32c_fill_table();
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t low = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        low ^= crc;
        crc = crc32c_table[7][low & 0xff] ^ crc32c_table[6][(low >> 8) & 0xff]
            ^ crc32c_table[5][(low >> 16) & 0xff] ^ crc32c_table[4][low >> 24]
            ^ crc32c_table[3][p[4]] ^ crc32c_table[2][p[5]] ^ crc32c_table[1][p[6]] ^ crc32c_table[0][p[7]];
    }
    while (n--) crc = (crc >> 8) ^ crc32c_table[0][(crc ^ *p++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define CRC32C_TARGET __attribute__((target("sse4.2,pclmul")))

/* The distance of prefetches ahead of the streams. Records in a mapped file are cold, and the processor does
 * not predict three streams at once: with prefetches cold data is checked half as fast again. */
enum { PREFETCH_BYTES = 2048 };

/* Computes the CRC of three streams of `bytes` each. `twice` and `once` move a remainder over two streams and
 * over one. */
CRC32C_TARGET static inline uint32_t crc32c_three(
    uint32_t crc, const uint8_t *p, size_t bytes, uint32_t twice, uint32_t once) {
    for (size_t ahead = 0; ahead < 3 * bytes; ahead += 64) __builtin_prefetch(p + PREFETCH_BYTES + ahead);
    uint64_t a = crc, b = 0, c = 0;
    for (const uint8_t *end = p + bytes; p < end; p += 8) {
        a = _mm_crc32_u64(a, crc32c_word(p));
        b = _mm_crc32_u64(b, crc32c_word(p + bytes));
        c = _mm_crc32_u64(c, crc32c_word(p + 2 * bytes));
    }
    __m128i moved = _mm_xor_si128(
        _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)twice), 0),
        _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)b), _mm_cvtsi32_si128((int)once), 0));
    return (uint32_t)(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(moved)) ^ c);
}

CRC32C_TARGET static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 3 * 256; p += 3 * 256, n -= 3 * 256)
        crc = crc32c_three(crc, p, 256, 0xdd7e3b0cu, 0xb9e02b86u);
    for (; n >= 3 * 64; p += 3 * 64, n -= 3 * 64)
        crc = crc32c_three(crc, p, 64, 0x0d3b6092u, 0x9e4addf8u);
    uint64_t wide = crc;
    for (; n >= 8; p += 8, n -= 8) wide = _mm_crc32_u64(wide, crc32c_word(p));
    crc = (uint32_t)wide;
    while (n--) crc = _mm_crc32_u8(crc, *p++);
    return crc;
}

static inline int crc32c_has_hardware(void) {
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

__attribute__((target("+crc"))) static uint32_t crc32c_hardware(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) crc = __crc32cd(crc, crc32c_word(p));
    while (n--) crc = __crc32cb(crc, *p++);
    return crc;
}

static inline int crc32c_has_hardware(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

#else
#define crc32c_hardware crc32c_software
static inline int crc32c_has_hardware(void) { return 0; }
#endif

static inline uint32_t crc32c(uint32_t seed, const uint8_t *p, size_t n) {
    return ~(crc32c_has_hardware() ? crc32c_hardware(~seed, p, n) : crc32c_software(~seed, p, n));
}

#endif
