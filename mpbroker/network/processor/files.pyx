# Opening and closing the segment files of the table. An open file that was deleted keeps its disk space, and
# any open file takes a descriptor.
from libc.stdint cimport uint32_t, uint64_t
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close

cdef enum:
    CLOSE_DELETED_EVERY_NS = 1000 * 1000 * 1000


cdef void place_file(FileTable *files, const OpenFile *file) noexcept nogil:
    cdef uint32_t place = file_hash(file.slot, file.slot_generation, file.segment_base, file.inode)
    while files.places[place].fd >= 0:
        place = (place + 1) & (FILE_PLACES - 1)
    files.places[place] = file[0]
    files.count += 1

cdef int forget_files(FileTable *files) except -1:
    """Close the older half of the files that no channel sends from or waits for; return how many."""
    cdef uint32_t i
    cdef OpenFile *file
    idle = []
    for i in range(FILE_PLACES):
        file = &files.places[i]
        if file.fd >= 0 and not file.users and file.used < files.wanted_from:
            idle.append((file.used, i))
    idle.sort()
    del idle[(len(idle) + 1) // 2 :]
    for _, i in idle:
        close(files.places[i].fd)
        files.places[i].fd = -1
    if idle:
        place_anew(files)
    return len(idle)

cdef bint has_room(FileTable *files, uint32_t more) except -1:
    """Return whether `more` further files may be open, after closing idle ones if needed."""
    if files.count + more > files.most // 2:
        forget_files(files)
    while files.count + more > files.most and forget_files(files):
        pass
    return files.count + more <= files.most

cdef void place_anew(FileTable *files) noexcept nogil:
    """Insert all open files again after others were closed, since a search ends at an empty place."""
    cdef OpenFile kept[FILE_PLACES]
    cdef uint32_t count = 0, i
    for i in range(<uint32_t>FILE_PLACES):
        if files.places[i].fd >= 0:
            kept[count] = files.places[i]
            count += 1
            files.places[i].fd = -1
    files.count = 0
    for i in range(count):
        place_file(files, &kept[i])

cdef void close_deleted(FileTable *files, uint64_t now_ns) noexcept nogil:
    """Once a second, close deleted files that no channel is sending from, and let answers that wait for files
    try again, since there may be free descriptors now.
    """
    cdef struct_stat status
    cdef uint32_t i, closed = 0
    if files.next_closing_ns >= now_ns:
        return
    files.next_closing_ns = now_ns + CLOSE_DELETED_EVERY_NS
    files.released = True
    for i in range(<uint32_t>FILE_PLACES):
        if files.places[i].fd < 0 or files.places[i].users:
            continue
        if fstat(files.places[i].fd, &status) == 0 and status.st_nlink == 0:
            close(files.places[i].fd)
            files.places[i].fd = -1
            closed += 1
    if closed:
        place_anew(files)
