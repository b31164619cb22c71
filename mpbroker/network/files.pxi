# Open segment files: what goes in, and what is closed when there are too many or when nobody can ask for it any more: a
# deleted file costs its space on the disk for as long as it is open. Part of turn.pyx; files.pxd has the table.

cdef void place_file(FileTable *files, const OpenFile *file) noexcept nogil:
    cdef uint32_t place = file_hash(file.slot, file.slot_generation, file.segment_base, file.inode)
    while files.places[place].fd >= 0:
        place = (place + 1) & (FILE_PLACES - 1)
    files.places[place] = file[0]
    files.count += 1

cdef forget_files(FileTable *files):
    """Closes the older half of the files that nobody is sending from."""
    cdef uint32_t i
    idle = sorted(
        (files.places[i].used, i) for i in range(FILE_PLACES) if files.places[i].fd >= 0 and not files.places[i].users
    )
    for _, i in idle[: len(idle) // 2]:
        close(files.places[i].fd)
        files.places[i].fd = -1
    place_anew(files)

cdef void place_anew(FileTable *files) noexcept nogil:
    """Behind closings: an empty place ends a search."""
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

cdef void close_deleted_files(FileTable *files) noexcept nogil:
    """Those whose files have no name any more, unless somebody is sending from them."""
    cdef struct_stat status
    cdef uint32_t i, closed = 0
    for i in range(<uint32_t>FILE_PLACES):
        if files.places[i].fd < 0 or files.places[i].users:
            continue
        if fstat(files.places[i].fd, &status) == 0 and status.st_nlink == 0:
            close(files.places[i].fd)
            files.places[i].fd = -1
            closed += 1
    if closed:
        place_anew(files)

cdef take_file(
    FileTable *files, uint32_t slot, uint32_t slot_generation, int64_t segment_base, uint64_t inode, int fd
):
    cdef OpenFile file
    if file_find(files, slot, slot_generation, segment_base, inode) != NULL:
        close(fd)
        return
    if files.count >= FILE_LIMIT:
        forget_files(files)
    if files.count >= FILE_PLACES - 1:
        close(fd)               # all are being sent from; the answer that waits for it is given up
        return
    file.slot, file.slot_generation, file.segment_base, file.inode = slot, slot_generation, segment_base, inode
    file.fd, file.users, file.used = fd, 0, files.clock
    place_file(files, &file)
