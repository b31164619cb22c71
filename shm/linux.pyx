"""Linux system calls about a process or thread that Python's standard library does not have."""
from libc.errno cimport errno

import os


cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int option, ...)
    enum:
        PR_SET_PDEATHSIG

cdef extern from "<unistd.h>" nogil:
    long syscall(long number, ...)

cdef extern from "<sys/syscall.h>" nogil:
    enum:
        SYS_ioprio_set

# From <linux/ioprio.h>, which is not always installed.
cdef enum:
    IOPRIO_WHO_PROCESS = 1
    IOPRIO_CLASS_SHIFT = 13

IOPRIO_CLASS_BE, IOPRIO_CLASS_IDLE = 2, 3


def set_parent_death_signal(int number) -> None:
    """Have the kernel send this signal to the calling process when its parent dies. Raises OSError."""
    if prctl(PR_SET_PDEATHSIG, <unsigned long>number, 0, 0, 0) != 0:
        raise OSError(errno, os.strerror(errno))


def set_io_priority(int io_class, int level) -> None:
    """Set the I/O priority of the calling thread, as ionice does for a process. Raises OSError."""
    if syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, io_class << IOPRIO_CLASS_SHIFT | level) != 0:
        raise OSError(errno, os.strerror(errno))
