/* Room ahead: zeros behind the records of a segment that grows fast, written before the records come.
 *
 * A sync of a file that has grown since the last one waits for the file system's own journal, too; one that went over blocks that were
 * written before does not (Kafka has `preallocate` for that; here it is for whoever needs it, and so much as is needed). A thread of its own
 * appends the zeros, one segment at a time, and syncs them.
 *
 * They go to the file's end at the moment of the write (RWF_APPEND), which the kernel finds and moves under one lock: a record is never
 * written over, however fast its owner appends meanwhile. All that is not records ends with `room_give_back`: before a segment is sealed,
 * closed, or stopped with, and when the disk is full. Whoever is killed before that leaves zeros, which no start takes for a batch and every
 * one cuts off. Nobody but the owner of the segment may go by the size of the active one.
 *
 * `asked`, `fd`, `until` and `owner` are the owner's; while asked != done the thread reads them, and leaves `error` (an errno, or 0) and `end`. */
#ifndef MPBROKER_LOG_ROOM_H
#define MPBROKER_LOG_ROOM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shm/atomics.h"

#ifndef RWF_APPEND
#define RWF_APPEND 0x00000010
#endif

enum { ROOM_PIECE_BYTES = 256 << 10 };

typedef struct Room {
    uint64_t asked;
    uint64_t done;
    int fd; /* a duplicate, since the segment may be closed meanwhile; -1: none */
    int error;
    int64_t until;
    int64_t end;
    int64_t free_least; /* a disk that has less is full as far as this is concerned */
    const void *owner;  /* the partition; NULL: what becomes of it is of no interest any more */
    int given_back;     /* under `lock`, as each write is */
    pthread_mutex_t lock;
    int wake_fd;
    int started;
    uint64_t stop;
    uint64_t *bell_armed;
    int bell_fd;
    pthread_t thread;
    uint8_t *zeros;
} Room;

/* One piece more: -1 when there is no more to do, else an errno or 0. */
static int room_step(Room *r) {
    struct stat now;
    int failed = -1;
    pthread_mutex_lock(&r->lock);
    if (!r->given_back && !load_acquire(&r->stop)) {
        if (fstat(r->fd, &now)) {
            failed = errno;
        } else if (now.st_size < r->until) {
            int64_t left = r->until - now.st_size;
            struct iovec piece = {r->zeros, (size_t)(left < ROOM_PIECE_BYTES ? left : ROOM_PIECE_BYTES)};
            ssize_t put = pwritev2(r->fd, &piece, 1, 0, RWF_APPEND);
            failed = put > 0 ? 0 : put == 0 ? ENOSPC : errno == EINTR ? 0 : errno;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return failed;
}

static void room_make(Room *r) {
    struct statvfs disk;
    struct stat now;
    int failed = fstatvfs(r->fd, &disk) ? errno : 0;
    r->end = 0;
    if (!failed && (int64_t)(disk.f_bavail * disk.f_frsize) < r->free_least) failed = ENOSPC;
    while (!failed) failed = room_step(r);
    if (failed == -1) {
        do failed = fdatasync(r->fd) ? errno : 0; while (failed == EINTR);
        if (!failed && !fstat(r->fd, &now)) r->end = now.st_size;
    }
    r->error = failed;
}

static void *room_main(void *argument) {
    Room *r = (Room *)argument;
    for (;;) {
        uint64_t rung;
        ssize_t got = read(r->wake_fd, &rung, sizeof rung);
        if (got < 0 && errno != EINTR) return NULL;
        if (load_acquire(&r->stop)) return NULL;
        uint64_t asked = load_acquire(&r->asked);
        if (asked == load_relaxed(&r->done)) continue;
        room_make(r);
        store_release(&r->done, asked);
        fence_full();
        if (load_relaxed(r->bell_armed)) {
            uint64_t one = 1;
            ssize_t put = write(r->bell_fd, &one, sizeof one);
            (void)put; /* a full eventfd rings as well */
        }
    }
}

/* After the fork: threads do not survive one. Signals stay with the main thread. Returns an errno. */
static int room_start(Room *r, uint64_t *bell_armed, int bell_fd) {
    sigset_t all, before;
    r->bell_armed = bell_armed;
    r->bell_fd = bell_fd;
    r->zeros = (uint8_t *)calloc(1, ROOM_PIECE_BYTES);
    if (!r->zeros) return ENOMEM;
    r->fd = -1;
    r->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (r->wake_fd < 0) return errno;
    pthread_mutex_init(&r->lock, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&r->thread, NULL, room_main, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    r->started = !failed;
    return failed;
}

/* `fd` is the thread's until it is done; `until`: how large the file is to be. */
static void room_ask(Room *r, const void *owner, int fd, int64_t until) {
    uint64_t one = 1;
    r->fd = fd;
    r->until = until;
    r->owner = owner;
    r->given_back = 0;
    store_release(&r->asked, r->asked + 1);
    ssize_t put = write(r->wake_fd, &one, sizeof one);
    (void)put;
}

/* The file ends with its records again, and stays so. It waits for one piece at most. Returns an errno. */
static int room_give_back(Room *r, const void *owner, int fd, int64_t size) {
    int failed;
    if (r && r->owner == owner) {
        pthread_mutex_lock(&r->lock);
        r->given_back = 1;
        pthread_mutex_unlock(&r->lock);
        r->owner = NULL;
    }
    do failed = ftruncate(fd, size); while (failed && errno == EINTR);
    return failed ? errno : 0;
}

static void room_stop(Room *r) {
    uint64_t one = 1;
    if (!r->started) return;
    store_release(&r->stop, 1);
    ssize_t put = write(r->wake_fd, &one, sizeof one);
    (void)put;
    pthread_join(r->thread, NULL);
    close(r->wake_fd);
    if (r->fd >= 0) close(r->fd);
    pthread_mutex_destroy(&r->lock);
    free(r->zeros);
    r->owner = NULL;
    r->started = 0;
}

#endif
