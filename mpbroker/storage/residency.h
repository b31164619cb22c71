/* Returns whether a part of a file can be read without waiting for the disk.
 *
 * cachestat(2) (Linux 6.5) counts the pages in the page cache. Where the kernel or a filter of system calls
 * refuses it, one page in PROBE_EVERY_BYTES is probed. Pages that are just being read are counted as well, so
 * the last page is always probed, by a read that does not wait. If the file system has no such reads, a part
 * counts as resident: nothing could be done about it. */
#ifndef MPBROKER_STORAGE_RESIDENCY_H
#define MPBROKER_STORAGE_RESIDENCY_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008
#endif

enum { CACHESTAT_CALL = 451, PROBE_EVERY_BYTES = 1 << 16 };

/* Copies of the structs in <linux/mman.h>, which older headers lack. */
struct cachestat_of {
    uint64_t offset, length;
};
struct cachestat_is {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

/* Returns whether one byte can be read without waiting. */
static inline int page_is_there(int fd, int64_t position) {
    char byte;
    struct iovec into = {&byte, 1};
    ssize_t got;
    do {
        got = preadv2(fd, &into, 1, position, RWF_NOWAIT);
    } while (got < 0 && errno == EINTR);
    return got >= 0 || errno != EAGAIN;
}

static inline int pages_by_probes(int fd, int64_t position, int64_t length) {
    for (int64_t at = position; at < position + length; at += PROBE_EVERY_BYTES)
        if (!page_is_there(fd, at)) return 0;
    return page_is_there(fd, position + length - 1);
}

/* Returns whether `length` bytes, which the file has, can be read without waiting. */
static inline int is_resident(int fd, int64_t position, int64_t length) {
    static int has_cachestat = 1;
    static int64_t page_bytes = 0;
    struct cachestat_of part = {(uint64_t)position, (uint64_t)length};
    struct cachestat_is found;
    if (length <= 0) return 1;
    if (page_bytes == 0) page_bytes = sysconf(_SC_PAGESIZE);
    if (has_cachestat) {
        memset(&found, 0, sizeof(found));
        if (syscall(CACHESTAT_CALL, fd, &part, &found, 0) == 0) {
            int64_t pages = (position + length - 1) / page_bytes - position / page_bytes + 1;
            return (int64_t)found.cached >= pages && page_is_there(fd, position + length - 1);
        }
        if (errno == ENOSYS || errno == EPERM) has_cachestat = 0;
    }
    return pages_by_probes(fd, position, length);
}

#endif
