/* The thread that syncs. It never touches Python: beside a busy loop, a thread that needs the GIL gets a few flushes a second.
 *
 * The owner fills `fds` and `count`, publishes the number of the round in `asked` and writes `wake_fd`. The thread syncs them all, leaves an
 * errno or 0 for each in `errors`, publishes `done` and rings the owner's doorbell. While asked != done, the lists belong to the thread. */
#ifndef MPBROKER_LOG_FLUSHER_H
#define MPBROKER_LOG_FLUSHER_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/atomics.h"

typedef struct Flusher {
    uint64_t asked;
    uint64_t done;
    int *fds;
    int *errors;
    int count;
    int room;
    int wake_fd;
    int started;
    uint64_t stop;
    uint64_t *bell_armed;
    int bell_fd;
    pthread_t thread;
} Flusher;

static void *flusher_main(void *argument) {
    Flusher *f = (Flusher *)argument;
    for (;;) {
        uint64_t rung;
        ssize_t got = read(f->wake_fd, &rung, sizeof rung);
        if (got < 0 && errno != EINTR) return NULL;
        if (load_acquire(&f->stop)) return NULL;
        uint64_t round = load_acquire(&f->asked);
        if (round == load_relaxed(&f->done)) continue;
        for (int i = 0; i < f->count; i++) {
            int failed;
            do failed = fdatasync(f->fds[i]); while (failed && errno == EINTR);
            f->errors[i] = failed ? errno : 0;
        }
        store_release(&f->done, round);
        fence_full();
        if (load_relaxed(f->bell_armed)) {
            uint64_t one = 1;
            ssize_t put = write(f->bell_fd, &one, sizeof one);
            (void)put; /* a full eventfd rings as well */
        }
    }
}

/* After the fork: threads do not survive one. Signals stay with the main thread. Returns an errno. */
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

static int flusher_reserve(Flusher *f, int count) {
    if (count <= f->room) return 1;
    int room = count * 2;
    int *fds = (int *)realloc(f->fds, room * sizeof(int));
    if (!fds) return 0;
    f->fds = fds;
    int *errors = (int *)realloc(f->errors, room * sizeof(int));
    if (!errors) return 0;
    f->errors = errors;
    f->room = room;
    return 1;
}

static void flusher_ask(Flusher *f) {
    uint64_t one = 1;
    store_release(&f->asked, f->asked + 1);
    ssize_t put = write(f->wake_fd, &one, sizeof one);
    (void)put;
}

static void flusher_stop(Flusher *f) {
    uint64_t one = 1;
    if (!f->started) return;
    store_release(&f->stop, 1);
    ssize_t put = write(f->wake_fd, &one, sizeof one);
    (void)put;
    pthread_join(f->thread, NULL);
    close(f->wake_fd);
    free(f->fds);
    free(f->errors);
    f->started = 0;
}

#endif
