/* For LD_PRELOAD: one call of a kind fails, of those that a process makes below a directory.
 *
 * fault_arm(root, kind, number, error) arms it: the call with that number, counted from 1, fails with the errno, and so do all after it
 * until it is armed anew; with a negative number it alone. fault_count() says how many there were. Kinds: 1 what writes or makes a
 * file longer, 2 syncs, 3 reads, 5 write-back that is asked for.
 *
 * fault_sector(root, at, whole): a byte that pread cannot read, in each file below the directory. A read ends in front of it and fails
 * only if it begins there, as with the page cache; with `whole` each read that covers it fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC, READ, SECTOR, WRITE_BACK };

static char root[PATH_MAX];
static volatile int kind, number, error, count, is_whole;
static volatile off64_t bad;

void fault_arm(const char *where, int what, int which, int fails_with) {
    kind = 0;
    snprintf(root, sizeof root, "%s", where);
    number = which, error = fails_with, count = 0;
    __sync_synchronize();
    kind = what;
}

void fault_sector(const char *where, long at, int whole) {
    kind = 0;
    snprintf(root, sizeof root, "%s", where);
    bad = at, is_whole = whole, count = 0;
    __sync_synchronize();
    kind = SECTOR;
}

int fault_count(void) { return count; }

static int below(const char *path) {
    size_t length = strlen(root);
    return !strncmp(path, root, length) && (path[length] == '/' || path[length] == 0);
}

static int is_its_turn(void) {
    int now = __sync_add_and_fetch(&count, 1);
    return number < 0 ? now == -number : now >= number;
}

static int concerns(int what, int fd) {
    char link[64], path[PATH_MAX];
    if (kind != what) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below(path);
}

static int fails(int what, int fd) {
    if (!concerns(what, fd) || !is_its_turn()) return 0;
    errno = error;
    return 1;
}

/* How much of it can be read; -1 if nothing. */
static ssize_t readable(int fd, size_t bytes, off64_t at) {
    if (fails(READ, fd)) return -1;
    if (at > bad || at + (off64_t)bytes <= bad || !concerns(SECTOR, fd)) return bytes;
    __sync_add_and_fetch(&count, 1);
    if (!is_whole && at < bad) return bad - at;
    errno = EIO;
    return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define GUARDED(type, name, what, parameters, arguments) \
    type name parameters { return fails(what, fd) ? (type)-1 : REAL(name) arguments; }

GUARDED(ssize_t, write, WRITE, (int fd, const void *data, size_t bytes), (fd, data, bytes))
GUARDED(ssize_t, pwrite, WRITE, (int fd, const void *data, size_t bytes, off_t at), (fd, data, bytes, at))
GUARDED(ssize_t, pwrite64, WRITE, (int fd, const void *data, size_t bytes, off64_t at), (fd, data, bytes, at))
GUARDED(ssize_t, pwritev, WRITE, (int fd, const struct iovec *parts, int n, off_t at), (fd, parts, n, at))
GUARDED(ssize_t, pwritev64, WRITE, (int fd, const struct iovec *parts, int n, off64_t at), (fd, parts, n, at))
GUARDED(int, fsync, SYNC, (int fd), (fd))
GUARDED(int, fdatasync, SYNC, (int fd), (fd))
GUARDED(int, syncfs, SYNC, (int fd), (fd))
GUARDED(int, sync_file_range, WRITE_BACK, (int fd, off64_t at, off64_t bytes, unsigned how), (fd, at, bytes, how))
GUARDED(ssize_t, read, READ, (int fd, void *data, size_t bytes), (fd, data, bytes))
GUARDED(ssize_t, preadv, READ, (int fd, const struct iovec *parts, int n, off_t at), (fd, parts, n, at))
GUARDED(ssize_t, preadv64, READ, (int fd, const struct iovec *parts, int n, off64_t at), (fd, parts, n, at))
GUARDED(ssize_t, preadv2, READ, (int fd, const struct iovec *parts, int n, off_t at, int how), (fd, parts, n, at, how))
GUARDED(ssize_t, preadv64v2, READ, (int fd, const struct iovec *parts, int n, off64_t at, int how), (fd, parts, n, at, how))

#define READING(name) \
    ssize_t name(int fd, void *data, size_t bytes, off64_t at) { \
        ssize_t most = readable(fd, bytes, at); \
        return most < 0 ? -1 : REAL(name)(fd, data, most, at); \
    }

READING(pread)
READING(pread64)

int posix_fallocate(int fd, off_t at, off_t bytes) { return fails(WRITE, fd) ? error : REAL(posix_fallocate)(fd, at, bytes); }
int posix_fallocate64(int fd, off64_t at, off64_t bytes) { return fails(WRITE, fd) ? error : REAL(posix_fallocate64)(fd, at, bytes); }

/* Making a file needs room as well. */
static int refused(const char *path, int flags) {
    if (kind != WRITE || !(flags & O_CREAT) || path[0] != '/' || !below(path) || access(path, F_OK) == 0) return 0;
    if (!is_its_turn()) return 0;
    errno = error;
    return 1;
}

#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; \
        va_start(more, flags); \
        int mode = flags & O_CREAT ? va_arg(more, int) : 0; \
        va_end(more); \
        return refused(path, flags) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode); \
    }

OPENING(open)
OPENING(open64)
