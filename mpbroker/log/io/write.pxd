"""Write scattered pieces of memory to a file completely, and tell a full disk from other errors."""
from libc.errno cimport EDQUOT, EFBIG, EINTR, ENOSPC, errno
from libc.stdint cimport int64_t, uint8_t
from posix.uio cimport iovec, pwritev


cdef inline int write_pieces(int fd, iovec *pieces, int count, int64_t *position) noexcept nogil:
    """Write pieces one after the other from `position`, which moves to their end.

    Returns an errno, or 0. Changes `pieces`.
    """
    cdef int first = 0
    cdef ssize_t wrote
    while first < count:
        wrote = pwritev(fd, &pieces[first], count - first, position[0])
        if wrote < 0 and errno == EINTR:
            continue
        if wrote <= 0:
            return errno if wrote < 0 else ENOSPC
        position[0] += wrote
        while first < count and <size_t>wrote >= pieces[first].iov_len:
            wrote -= pieces[first].iov_len
            first += 1
        if first < count and wrote:
            pieces[first].iov_base = <uint8_t *>pieces[first].iov_base + wrote
            pieces[first].iov_len -= wrote
    return 0


cdef inline bint is_full_disk(int error) noexcept nogil:
    """Return whether an errno means a full disk.

    Produce requests are refused then. Reads continue, and appends resume as soon as there is room.
    """
    return error == ENOSPC or error == EDQUOT or error == EFBIG
