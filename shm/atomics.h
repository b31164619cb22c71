/* The memory order that plain Python cannot express. Every shared word of this package goes through here. */
#ifndef SHM_ATOMICS_H
#define SHM_ATOMICS_H
#include <stdint.h>

static inline uint64_t load_acquire(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline uint64_t load_relaxed(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void store_release(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
static inline void store_relaxed(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
static inline uint8_t load_byte(const uint8_t *byte) { return __atomic_load_n(byte, __ATOMIC_RELAXED); }
static inline void store_byte(uint8_t *byte, uint8_t value) {
    __atomic_store_n(byte, value, __ATOMIC_RELAXED);
}
static inline void fence_full(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void fence_acquire(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void fence_release(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

#endif
