/* The commit journal of a log directory: the bytes that a commit round wrote to many segments, once more
 * in one place, so that one fdatasync makes the round durable. The flusher's thread writes it, the next
 * start reads it. Kafka has no such file and leaves it alone.
 *
 *   mpbroker.journal
 *      0    head A     the valid head (by its CRC) with the larger version counts; they are written in
 *   4096    head B     turn, so that a torn one leaves the other
 *   8192    ring       records one after the other, each from a multiple of 512 on: none shares a sector
 *                      with one that was synced before
 *
 *   head    magic 8 | version 8 | nonce 8 | ring bytes 8 | start 8 | CRC-32C 4 of all in front of it
 *   record  magic 4 | CRC-32C 4 of the rest | nonce 8 | sequence 8 | bytes 8, a multiple of 512 |
 *           extents 4 | first 4
 *           then its extents, then the batches of the first extent, of the second, ..., then zeros
 *   extent  topic id 16 | segment base offset 8 | position in the segment 8 | offset after it 8 |
 *           bytes 4 | partition 4
 *
 * All numbers are little endian. A record's sequence is the place at which it begins in an endless stream,
 * of which the ring holds the last bytes: it lies at `sequence % ring bytes`, and the next one has the
 * sequence `sequence + bytes`.
 *
 * Reading begins at the head's `start` and ends with the first record that is not the expected one. Only
 * the last one can be torn, since a round is synced before the next begins: if a whole one follows it, the
 * journal is damaged. So a record proves that the round of the one in front of it was finished, with all
 * that was synced elsewhere. A process's first record (`first` is 1) proves nothing: its predecessor may
 * have died in that round.
 *
 * Everything before `start` is in segments that were synced. It is overwritten only when that head is on
 * disk. The nonce is new with each start of the broker: nothing that a producer sent earlier, and nothing
 * of an earlier lap, is taken for a record. */
#ifndef MPBROKER_STORAGE_JOURNAL_H
#define MPBROKER_STORAGE_JOURNAL_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "mpbroker/records/crc32c.h"

#define JOURNAL_NAME "mpbroker.journal"
#define JOURNAL_HEAD_MAGIC 0x6c616e72756f6a6dULL /* "mjournal" */
#define JOURNAL_RECORD_MAGIC 0x6f646572u         /* "redo" */

enum { JOURNAL_HEAD_BYTES = 4096, JOURNAL_RING_AT = 8192, JOURNAL_BLOCK_BYTES = 512 };

typedef struct JournalHead {
    uint64_t magic, version, nonce, ring_bytes, start;
    uint32_t crc;
    uint32_t zero;
} JournalHead;

typedef struct JournalRecord {
    uint32_t magic, crc;
    uint64_t nonce, sequence, bytes;
    uint32_t extents, first;
} JournalRecord;

typedef struct JournalExtent {
    uint8_t topic_id[16];
    int64_t segment_base, position, end_offset;
    uint32_t bytes;
    int32_t partition;
} JournalExtent;

_Static_assert(sizeof(JournalHead) == 48 && offsetof(JournalHead, crc) == 40, "head");
_Static_assert(sizeof(JournalRecord) == 40 && offsetof(JournalRecord, nonce) == 8, "record");
_Static_assert(sizeof(JournalExtent) == 48, "extent");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the journal is written as it lies in memory");

/* Return the bytes that a record takes in the ring. */
static inline uint64_t journal_record_bytes(uint64_t extents, uint64_t payload) {
    uint64_t bytes = sizeof(JournalRecord) + extents * sizeof(JournalExtent) + payload;
    return (bytes + JOURNAL_BLOCK_BYTES - 1) / JOURNAL_BLOCK_BYTES * JOURNAL_BLOCK_BYTES;
}

static void journal_fill_head(
    JournalHead *head, uint64_t version, uint64_t nonce, uint64_t ring_bytes, uint64_t start) {
    JournalHead filled = {JOURNAL_HEAD_MAGIC, version, nonce, ring_bytes, start, 0, 0};
    filled.crc = crc32c(0, (const uint8_t *)&filled, offsetof(JournalHead, crc));
    *head = filled;
}

static int journal_head_valid(const JournalHead *head) {
    return head->magic == JOURNAL_HEAD_MAGIC
        && head->crc == crc32c(0, (const uint8_t *)head, offsetof(JournalHead, crc));
}

static inline uint64_t journal_head_at(uint64_t version) { return (version & 1) * JOURNAL_HEAD_BYTES; }

/* Put the CRC into a record that lies in memory with all that belongs to it, zeros up to `bytes`. It
 * goes in last. */
static void journal_seal(uint8_t *record, uint64_t bytes) {
    ((JournalRecord *)record)->crc =
        crc32c(0, record + offsetof(JournalRecord, nonce), bytes - offsetof(JournalRecord, nonce));
}

/* Return whether the first 40 bytes can be the record expected next. The CRC is checked once all of it is
 * read. */
static int journal_expected(
    const JournalRecord *record, uint64_t nonce, uint64_t sequence, uint64_t ring_bytes) {
    return record->magic == JOURNAL_RECORD_MAGIC && record->nonce == nonce && record->sequence == sequence
        && record->bytes % JOURNAL_BLOCK_BYTES == 0 && record->bytes <= ring_bytes
        && record->bytes >= journal_record_bytes(record->extents, 0);
}

static int journal_intact(const uint8_t *record, uint64_t bytes) {
    return ((const JournalRecord *)record)->crc
        == crc32c(0, record + offsetof(JournalRecord, nonce), bytes - offsetof(JournalRecord, nonce));
}

/* Write exactly `bytes` at `at`; return an errno, or 0. */
static int journal_pwrite(int fd, const uint8_t *from, uint64_t bytes, uint64_t at) {
    while (bytes) {
        ssize_t put = pwrite(fd, from, bytes, (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return put < 0 ? errno : EIO;
        from += put, bytes -= (uint64_t)put, at += (uint64_t)put;
    }
    return 0;
}

static int journal_pread(int fd, uint8_t *to, uint64_t bytes, uint64_t at) {
    while (bytes) {
        ssize_t got = pread(fd, to, bytes, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got < 0 ? errno : EIO;
        to += got, bytes -= (uint64_t)got, at += (uint64_t)got;
    }
    return 0;
}

/* Write into the ring, or read from it, around its end. */
static int journal_put(int fd, const uint8_t *from, uint64_t bytes, uint64_t sequence, uint64_t ring_bytes) {
    uint64_t at = sequence % ring_bytes, first = ring_bytes - at < bytes ? ring_bytes - at : bytes;
    int failed = journal_pwrite(fd, from, first, JOURNAL_RING_AT + at);
    return failed ? failed : journal_pwrite(fd, from + first, bytes - first, JOURNAL_RING_AT);
}

static int journal_get(int fd, uint8_t *to, uint64_t bytes, uint64_t sequence, uint64_t ring_bytes) {
    uint64_t at = sequence % ring_bytes, first = ring_bytes - at < bytes ? ring_bytes - at : bytes;
    int failed = journal_pread(fd, to, first, JOURNAL_RING_AT + at);
    return failed ? failed : journal_pread(fd, to + first, bytes - first, JOURNAL_RING_AT);
}

/* Write a head as records are written: whole aligned blocks, so that it may bypass the page cache. */
static int journal_put_head(int fd, uint64_t version, uint64_t nonce, uint64_t ring_bytes, uint64_t start) {
    _Alignas(JOURNAL_BLOCK_BYTES) uint8_t block[JOURNAL_BLOCK_BYTES] = {0};
    journal_fill_head((JournalHead *)block, version, nonce, ring_bytes, start);
    return journal_pwrite(fd, block, sizeof block, journal_head_at(version));
}

#endif
