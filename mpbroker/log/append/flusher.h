/* The thread that syncs. It never touches Python: with a busy loop, a thread that needs the GIL gets a
 * few flushes a second.
 *
 * Rounds are numbered, and their two places are used in turn. The owner fills one, publishes its number
 * in `asked` and writes `wake_fd`. The thread writes the journals' records, syncs all files and the
 * journals, leaves an errno or 0 for each, publishes `done` and rings the owner's doorbell. Until then
 * the round belongs to the thread.
 *
 * While the thread works on a round, the owner may offer the next one in `offered`. The thread continues
 * with it without being woken, if all of the round in front went well. Both sides take the offer by an
 * exchange: until the thread has taken it, the owner may take it back and add to it. */
#ifndef MPBROKER_LOG_FLUSHER_H
#define MPBROKER_LOG_FLUSHER_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "mpbroker/storage/journal.h"
#include "shm/atomics.h"

enum { LOG_DIRS_MOST = 64, PAGE_BYTES = 4096, NOT_OFFERED = 0, WRITEBACK_BYTES = 1 << 18 };

/* A round's write to one journal. Its extents name bytes that are in segments already, in the page cache.
* They are read from there, since the requests that brought them may have been answered and freed. */
typedef struct JournalWrite {
    int fd;
    int error;
    int went_around; /* the journal had no room, and the segments themselves were synced */
    int first;       /* this owner has written no record before */
    uint64_t nonce, ring_bytes;
    uint64_t sequence, payload; /* of the record; count == 0: no record */
    uint64_t version, start;    /* of the head; version 0: no head */
    JournalExtent *extents;
    int *fds; /* the segment of each extent */
    int count, room;
} JournalWrite;

typedef struct FlushRound {
    int *fds; /* -1: nothing to sync */
    int *errors;
    int count;
    int data_count; /* the first ones, which need fdatasync; the others fsync, for their names and times */
    int room;
    uint64_t journals; /* log directories whose journal is written, as a bit set */
    JournalWrite writes[LOG_DIRS_MOST];
    uint64_t took_ns;
} FlushRound;

typedef struct Flusher {
    uint64_t asked;   /* the last round that the thread was woken for */
    uint64_t offered; /* the number of a round, or NOT_OFFERED */
    uint64_t done;
    FlushRound rounds[2];
    int wake_fd;
    int started;
    uint8_t *buffer; /* records are put together here; page-aligned, with room for the largest */
    uint64_t buffer_bytes;
    uint64_t stop;
    uint64_t *bell_armed;
    int bell_fd;
    pthread_t thread;
} Flusher;

/* Open a file a second time; return -1 and set errno on failure. The kernel reports a failed write once
 * to each open file description: on a duplicate, this thread's sync would consume the error that the
 * other thread must hear, too. */
static int flusher_open(int fd) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Write through the page cache if direct I/O refuses: where a limit of the file's size is no multiple
 * of a block, direct I/O fails with EINVAL, and here the limit itself is reported. The journal's
 * sync covers these bytes and reports their errors. */
static int flusher_put_cached(const JournalWrite *w, const uint8_t *buffer, uint64_t bytes) {
    int fd = flusher_open(w->fd);
    if (fd < 0) return errno;
    int failed = journal_put(fd, buffer, bytes, w->sequence, w->ring_bytes);
    close(fd);
    return failed;
}

static int flusher_write_record(const JournalWrite *w, uint8_t *buffer) {
    uint64_t bytes = journal_record_bytes((uint64_t)w->count, w->payload);
    uint64_t at = sizeof(JournalRecord) + (uint64_t)w->count * sizeof(JournalExtent);
    JournalRecord record = {
        JOURNAL_RECORD_MAGIC, 0, w->nonce, w->sequence, bytes, (uint32_t)w->count, (uint32_t)w->first};
    memcpy(buffer, &record, sizeof record);
    memcpy(buffer + sizeof record, w->extents, (size_t)w->count * sizeof(JournalExtent));
    for (int i = 0; i < w->count; i++) {
        int failed =
            journal_pread(w->fds[i], buffer + at, w->extents[i].bytes, (uint64_t)w->extents[i].position);
        if (failed) return failed;
        at += w->extents[i].bytes;
    }
    memset(buffer + at, 0, bytes - at);
    journal_seal(buffer, bytes);
    int failed = journal_put(w->fd, buffer, bytes, w->sequence, w->ring_bytes);
    return failed == EINVAL ? flusher_put_cached(w, buffer, bytes) : failed;
}

static int flusher_write_journal(const JournalWrite *w, uint8_t *buffer) {
    int failed = w->count ? flusher_write_record(w, buffer) : 0;
    if (failed || !w->version) return failed;
    return journal_put_head(w->fd, w->version, w->nonce, w->ring_bytes, w->start);
}

static int flusher_sync(int fd, int data_only) {
    int failed;
    do failed = data_only ? fdatasync(fd) : fsync(fd); while (failed && errno == EINTR);
    return failed ? errno : 0;
}

/* Sync the segments instead of the journal. Where blocks are never written in place (btrfs, ZFS), a full
 * disk refuses the journal, too. That takes no directory offline: the segments' bytes got their room
 * when they were appended. */
static int flusher_go_around(JournalWrite *w) {
    w->went_around = 1;
    for (int i = 0; i < w->count; i++) {
        int failed = flusher_sync(w->fds[i], 1);
        if (failed) return failed;
    }
    return 0;
}

static void flusher_journal(JournalWrite *w, uint8_t *buffer) {
    w->error = flusher_write_journal(w, buffer);
    if (w->error == ENOSPC || w->error == EDQUOT || w->error == EFBIG) w->error = flusher_go_around(w);
}

static uint64_t flusher_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Exchange a word between two threads of one process, which die together. Words that processes share
 * have one writer each. */
static inline uint64_t flusher_exchange(uint64_t *word, uint64_t value) {
    return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

static inline FlushRound *flusher_place(Flusher *f, uint64_t number) { return &f->rounds[number & 1]; }

/* Return whether the kernel gave up bytes that it was to write. Otherwise it has written nothing, and the
 * segment's sync reports the error. */
static int flusher_is_lost(int error) {
    return error != EINTR && error != EAGAIN && error != ENOMEM && error != ENOSYS && error != EPERM
        && error != EINVAL;
}

/* Start to write the round's bytes to their segments as well, a piece at a time. The kernel on its own
 * would wait until seconds' worth has gathered, and a round would then wait for the disk after that.
 * The segment's sync reports what the disk makes of it. An earlier failure, as to find room on the disk
 * (ext4: "Delayed block allocation failed ... Data will be lost"), is reported here and never again. */
static int flusher_write_back(const JournalWrite *w) {
    int lost = 0;
    for (int i = 0; i < w->count; i++) {
        int64_t from = w->extents[i].position & ~(int64_t)(WRITEBACK_BYTES - 1);
        int64_t to = (w->extents[i].position + w->extents[i].bytes) & ~(int64_t)(WRITEBACK_BYTES - 1);
        if (from < to && sync_file_range(w->fds[i], from, to - from, SYNC_FILE_RANGE_WRITE)
            && flusher_is_lost(errno))
            lost = errno;
    }
    return lost;
}

static void flusher_sync_round(FlushRound *r, uint8_t *buffer) {
    uint64_t began_ns = flusher_now_ns();
    for (int dir = 0; dir < LOG_DIRS_MOST; dir++)
        if (r->journals >> dir & 1) flusher_journal(&r->writes[dir], buffer);
    for (int i = 0; i < r->count; i++)
        r->errors[i] = r->fds[i] < 0 ? 0 : flusher_sync(r->fds[i], i < r->data_count);
    for (int dir = 0; dir < LOG_DIRS_MOST; dir++)
        if (r->journals >> dir & 1 && !r->writes[dir].error)
            r->writes[dir].error = flusher_sync(r->writes[dir].fd, 1);
    r->took_ns = flusher_now_ns() - began_ns;
    for (int dir = 0; dir < LOG_DIRS_MOST; dir++) {
        if (!(r->journals >> dir & 1)) continue;
        int lost = flusher_write_back(&r->writes[dir]);
        if (!r->writes[dir].error) r->writes[dir].error = lost;
    }
}

/* Return whether every file and journal of the round is written and synced. Only then may the next record
 * follow: it means that this round was finished. */
static int flusher_went_well(const FlushRound *r) {
    for (int i = 0; i < r->count; i++)
        if (r->errors[i]) return 0;
    for (int dir = 0; dir < LOG_DIRS_MOST; dir++)
        if (r->journals >> dir & 1 && (r->writes[dir].error || r->writes[dir].went_around)) return 0;
    return 1;
}

static void flusher_publish(Flusher *f, uint64_t done) {
    store_release(&f->done, done);
    fence_full();
    if (load_relaxed(f->bell_armed)) {
        uint64_t one = 1;
        ssize_t put = write(f->bell_fd, &one, sizeof one);
        (void)put; /* a full eventfd rings as well */
    }
}

static void *flusher_main(void *argument) {
    Flusher *f = (Flusher *)argument;
    for (;;) {
        uint64_t rung;
        ssize_t got = read(f->wake_fd, &rung, sizeof rung);
        if (got < 0 && errno != EINTR) return NULL;
        if (load_acquire(&f->stop)) return NULL;
        uint64_t round = load_acquire(&f->asked);
        if (round <= load_relaxed(&f->done)) continue;
        while (round != NOT_OFFERED) {
            FlushRound *r = flusher_place(f, round);
            flusher_sync_round(r, f->buffer);
            /* Take the offer before this round is published as done: a thread that sees it must know whether
             * the next one is taken. */
            uint64_t next = flusher_went_well(r) ? flusher_exchange(&f->offered, NOT_OFFERED) : NOT_OFFERED;
            flusher_publish(f, round);
            round = next;
        }
    }
}

/* Start the thread; return an errno, or 0. Call it after the fork, which threads do not survive. Signals
 * stay with the main thread. */
static int flusher_start(Flusher *f, uint64_t *bell_armed, int bell_fd) {
    sigset_t all, before;
    f->bell_armed = bell_armed;
    f->bell_fd = bell_fd;
    f->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (f->wake_fd < 0) return errno;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&f->thread, NULL, flusher_main, f);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    f->started = !failed;
    return failed;
}

static int flusher_reserve(FlushRound *r, int count) {
    if (count <= r->room) return 1;
    int room = count * 2;
    int *fds = (int *)realloc(r->fds, room * sizeof(int));
    if (!fds) return 0;
    r->fds = fds;
    int *errors = (int *)realloc(r->errors, room * sizeof(int));
    if (!errors) return 0;
    r->errors = errors;
    r->room = room;
    return 1;
}

/* Make room for records of up to that many bytes. Pages never written to take no memory. The disk may read
 * from the buffer (direct I/O), which cannot grow while the thread is at work. */
static int flusher_reserve_record(Flusher *f, uint64_t bytes) {
    void *buffer;
    if (bytes <= f->buffer_bytes) return 1;
    if (posix_memalign(&buffer, PAGE_BYTES, bytes)) return 0;
    free(f->buffer);
    f->buffer = (uint8_t *)buffer;
    f->buffer_bytes = bytes;
    return 1;
}

static int flusher_reserve_extents(JournalWrite *w, int count) {
    if (count <= w->room) return 1;
    int room = count * 2 + 64;
    JournalExtent *extents = (JournalExtent *)realloc(w->extents, room * sizeof(JournalExtent));
    if (!extents) return 0;
    w->extents = extents;
    int *fds = (int *)realloc(w->fds, room * sizeof(int));
    if (!fds) return 0;
    w->fds = fds;
    w->room = room;
    return 1;
}

/* Wake the thread for a round. It must be at rest. */
static void flusher_ask(Flusher *f, uint64_t round) {
    uint64_t one = 1;
    store_release(&f->asked, round);
    ssize_t put = write(f->wake_fd, &one, sizeof one);
    (void)put;
}

static void flusher_offer(Flusher *f, uint64_t round) { flusher_exchange(&f->offered, round); }

/* Return whether the offer is the owner's again; otherwise the thread has taken it. */
static int flusher_take_back(Flusher *f) { return flusher_exchange(&f->offered, NOT_OFFERED) != NOT_OFFERED; }

static void flusher_stop(Flusher *f) {
    uint64_t one = 1;
    if (!f->started) return;
    store_release(&f->stop, 1);
    ssize_t put = write(f->wake_fd, &one, sizeof one);
    (void)put;
    pthread_join(f->thread, NULL);
    close(f->wake_fd);
    free(f->buffer);
    for (int place = 0; place < 2; place++) {
        FlushRound *r = &f->rounds[place];
        free(r->fds);
        free(r->errors);
        for (int dir = 0; dir < LOG_DIRS_MOST; dir++) {
            free(r->writes[dir].extents);
            free(r->writes[dir].fds);
        }
    }
    f->started = 0;
}

#endif
