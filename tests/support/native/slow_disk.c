/* For LD_PRELOAD: fdatasync waits while the file that SLOW_DISK names exists. A disk that takes its time, and no error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int fd) {
    static int (*real)(int);
    const char *path = getenv("SLOW_DISK");
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    while (path && access(path, F_OK) == 0) usleep(1000);
    return real(fd);
}
