/* For LD_PRELOAD: writes down what a process does to the files below TRACE_ROOT, so that a test can tell what a power cut would have left.
 *
 * The trace (TRACE_FILE) is a sequence of events, each `kind 4, bytes of data 4, a 8, b 8, c 8` and its data; numbers are the machine's own.
 * Files go by inode number; what is unlinked or replaced is held, so that no number comes twice.
 *
 *   CREATE  a directory, b file, data name      MKDIR   the same, b a directory
 *   UNLINK  a directory, data name              RENAME  a directory, b file, data old name NUL new name (of one directory)
 *   WRITE   a file, b position, data            SIZE    a file, b its size from now on
 *   SYNC    a file or directory, b how many events there were when the sync began, c 1 if of the data only
 *   MARK    data, from trace_mark()
 *   SYNC_ALL  a directory, b how many events there were when it began: all below it is a file system of its own
 *
 * One lock orders events as the file system saw them. A sync is not done, only waited for a little: whoever runs beside it goes on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, MKDIR, UNLINK, RENAME, WRITE, SIZE, SYNC, MARK, SYNC_ALL };
enum { SYNC_US = 200 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace_fd = -1;
static uint64_t events;
static const char *root;

__attribute__((constructor)) static void begin(void) {
    root = getenv("TRACE_ROOT");
    if (root) trace_fd = (int)syscall(SYS_openat, AT_FDCWD, getenv("TRACE_FILE"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

static void event(uint32_t kind, uint64_t a, uint64_t b, uint64_t c, const void *data, uint32_t bytes) {
    struct { uint32_t kind, bytes; uint64_t a, b, c; } head = {kind, bytes, a, b, c};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, bytes}};
    if (syscall(SYS_writev, trace_fd, parts, bytes ? 2 : 1) != (long)(sizeof head + bytes)) abort();
    events++;
}

void trace_mark(const void *data, uint32_t bytes) {
    pthread_mutex_lock(&lock);
    event(MARK, 0, 0, 0, data, bytes);
    pthread_mutex_unlock(&lock);
}

/* ---- names ---- */

/* The whole path, if it is one below the root. */
static int below(int dir, const char *path, char *out) {
    if (trace_fd < 0) return 0;
    if (path[0] == '/' || dir == AT_FDCWD) {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        char link[64], parent[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t n = readlink(link, parent, sizeof parent - 1);
        if (n <= 0) return 0;
        parent[n] = 0;
        snprintf(out, PATH_MAX, "%.2000s/%.2000s", parent, path);
    }
    size_t length = strlen(root);
    return !strncmp(out, root, length) && out[length] == '/';
}

static uint64_t inode_at(const char *path) {
    struct stat s;
    return stat(path, &s) ? 0 : s.st_ino;
}

static uint64_t parent_of(const char *path, const char **name) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    *slash = 0;
    *name = path + (slash - parent) + 1;
    return inode_at(parent);
}

static void name_event(uint32_t kind, const char *path, uint64_t file) {
    const char *name;
    uint64_t dir = parent_of(path, &name);
    event(kind, dir, file, 0, name, (uint32_t)strlen(name));
}

/* Its inode number stays taken for as long as the process lives. */
static void hold(const char *path) {
    long held = syscall(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC | O_NOFOLLOW, 0);
    (void)held;
}

/* The file behind a descriptor; 0 if it is not below the root. */
static uint64_t traced(int fd) {
    char link[64], path[PATH_MAX], out[PATH_MAX];
    struct stat s;
    if (trace_fd < 0 || fstat(fd, &s) || !(S_ISREG(s.st_mode) || S_ISDIR(s.st_mode))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below(AT_FDCWD, path, out) || !strcmp(path, root) ? s.st_ino : 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* ---- opening, naming ---- */

/* It gets a name by linkat, if at all; no other file gets its number. */
static int open_unnamed(int dir, const char *path, int flags, mode_t mode) {
    char link[64];
    int fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (fd >= 0 && traced(fd)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        long held = syscall(SYS_openat, AT_FDCWD, link, O_PATH | O_CLOEXEC, 0);
        (void)held;
    }
    return fd;
}

int linkat(int from, const char *path, int to, const char *name, int flags) {
    char whole[PATH_MAX];
    if (!below(to, name, whole)) return (int)syscall(SYS_linkat, from, path, to, name, flags);
    pthread_mutex_lock(&lock);
    int failed = (int)syscall(SYS_linkat, from, path, to, name, flags);
    if (!failed) name_event(CREATE, whole, inode_at(whole));
    pthread_mutex_unlock(&lock);
    return failed;
}

int link(const char *path, const char *name) { return linkat(AT_FDCWD, path, AT_FDCWD, name, 0); }

static int open_traced(int dir, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    if ((flags & O_TMPFILE) == O_TMPFILE) return open_unnamed(dir, path, flags, mode);
    if (!(flags & (O_CREAT | O_TRUNC)) || !below(dir, path, whole)) return (int)syscall(SYS_openat, dir, path, flags, mode);
    pthread_mutex_lock(&lock);
    int is_new = access(whole, F_OK) != 0;
    int fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (fd >= 0 && is_new) name_event(CREATE, whole, inode_at(whole));
    else if (fd >= 0 && flags & O_TRUNC) event(SIZE, inode_at(whole), 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_traced(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_traced(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags) return open_traced(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags) return open_traced(dir, path, flags | O_LARGEFILE, mode); }

int mkdir(const char *path, mode_t mode) {
    char whole[PATH_MAX];
    if (!below(AT_FDCWD, path, whole)) return REAL(mkdir)(path, mode);
    pthread_mutex_lock(&lock);
    int failed = REAL(mkdir)(path, mode);
    if (!failed) name_event(MKDIR, whole, inode_at(whole));
    pthread_mutex_unlock(&lock);
    return failed;
}

static int unlink_traced(int dir, const char *path, int flags) {
    char whole[PATH_MAX];
    if (!below(dir, path, whole)) return (int)syscall(SYS_unlinkat, dir, path, flags);
    pthread_mutex_lock(&lock);
    hold(whole);
    int failed = (int)syscall(SYS_unlinkat, dir, path, flags);
    if (!failed) name_event(UNLINK, whole, 0);
    pthread_mutex_unlock(&lock);
    return failed;
}

int unlink(const char *path) { return unlink_traced(AT_FDCWD, path, 0); }
int unlinkat(int dir, const char *path, int flags) { return unlink_traced(dir, path, flags); }
int rmdir(const char *path) { return unlink_traced(AT_FDCWD, path, AT_REMOVEDIR); }

int rename(const char *from, const char *to) {
    char whole[PATH_MAX], other[PATH_MAX], names[2 * NAME_MAX + 2];
    if (!below(AT_FDCWD, from, whole) || !below(AT_FDCWD, to, other)) return REAL(rename)(from, to);
    pthread_mutex_lock(&lock);
    hold(other);
    int failed = REAL(rename)(from, to);
    if (!failed) {
        const char *old_name, *new_name;
        uint64_t dir = parent_of(whole, &old_name);
        if (parent_of(other, &new_name) == dir) {
            int length = sprintf(names, "%s%c%s", old_name, 0, new_name);
            event(RENAME, dir, inode_at(other), 0, names, (uint32_t)length);
        } else {
            /* Each directory has its own time of sync. */
            name_event(CREATE, other, inode_at(other));
            name_event(UNLINK, whole, 0);
        }
    }
    pthread_mutex_unlock(&lock);
    return failed;
}

/* ---- contents ---- */

static ssize_t pwrite_traced(int fd, const void *data, size_t bytes, off_t at) {
    uint64_t file = traced(fd);
    if (!file) return syscall(SYS_pwrite64, fd, data, bytes, at);
    pthread_mutex_lock(&lock);
    ssize_t put = syscall(SYS_pwrite64, fd, data, bytes, at);
    if (put > 0) event(WRITE, file, (uint64_t)at, 0, data, (uint32_t)put);
    pthread_mutex_unlock(&lock);
    return put;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) { return pwrite_traced(fd, data, bytes, at); }
ssize_t pwrite64(int fd, const void *data, size_t bytes, off_t at) { return pwrite_traced(fd, data, bytes, at); }

/* One after the other, as the file system may take them. */
static ssize_t pwritev_traced(int fd, const struct iovec *parts, int count, off_t at) {
    ssize_t whole = 0;
    for (int i = 0; i < count; i++) {
        ssize_t put = pwrite_traced(fd, parts[i].iov_base, parts[i].iov_len, at + whole);
        if (put < 0) return whole ? whole : put;
        whole += put;
        if ((size_t)put < parts[i].iov_len) break;
    }
    return whole;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return pwritev_traced(fd, parts, count, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) { return pwritev_traced(fd, parts, count, at); }

ssize_t write(int fd, const void *data, size_t bytes) {
    uint64_t file = traced(fd);
    if (!file) return syscall(SYS_write, fd, data, bytes);
    pthread_mutex_lock(&lock);
    off_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t put = syscall(SYS_write, fd, data, bytes);
    if (put > 0) event(WRITE, file, (uint64_t)at, 0, data, (uint32_t)put);
    pthread_mutex_unlock(&lock);
    return put;
}

static int resize_traced(int fd, off_t size) {
    uint64_t file = traced(fd);
    if (!file) return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    int failed = (int)syscall(SYS_ftruncate, fd, size);
    if (!failed) event(SIZE, file, (uint64_t)size, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return failed;
}

int ftruncate(int fd, off_t size) { return resize_traced(fd, size); }
int ftruncate64(int fd, off_t size) { return resize_traced(fd, size); }

/* Of files that are new. */
int posix_fallocate(int fd, off_t at, off_t bytes) {
    if (!traced(fd)) return REAL(posix_fallocate)(fd, at, bytes);
    return resize_traced(fd, at + bytes);
}
int posix_fallocate64(int fd, off_t at, off_t bytes) { return posix_fallocate(fd, at, bytes); }

/* ---- syncing ---- */

static int sync_traced(int fd, uint32_t kind, int data_only) {
    uint64_t file = traced(fd);
    if (!file) return (int)syscall(kind == SYNC_ALL ? SYS_syncfs : data_only ? SYS_fdatasync : SYS_fsync, fd);
    pthread_mutex_lock(&lock);
    uint64_t begun = events;
    pthread_mutex_unlock(&lock);
    usleep(SYNC_US);
    pthread_mutex_lock(&lock);
    event(kind, file, begun, (uint64_t)data_only, NULL, 0);
    pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int fd) { return sync_traced(fd, SYNC, 0); }
int fdatasync(int fd) { return sync_traced(fd, SYNC, 1); }
int syncfs(int fd) { return sync_traced(fd, SYNC_ALL, 0); }
