"""Small files of the tier that can be replaced on a full disk, too.

On a full disk the tier must be able to write them: only then may local segments be deleted. So each such file
has a spare beside it (`<name>.spare`), with at least as many blocks. On a full disk the new bytes go into the
spare's blocks, and the two names are exchanged: the old file becomes the next spare. Nothing is allocated, so
neither producers nor a kill can take the room away. If two such writes pass while somebody reads, the reader
gets bytes of both. So each of these files has a checksum, or no other readers.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpbroker.log.io.file_system import set_aside
from mpbroker.storage.checkpoints import opened, write_all_at, write_whole
from mpbroker.storage.disk_errors import NO_ROOM
from mpbroker.storage.exchange import exchange_names

SPARE: Final = ".spare"
# A spare has this much more room than the file has bytes.
GROWTH_BYTES: Final = 4096
# The unit of `st_blocks`, on every file system.
_BLOCK_BYTES: Final = 512


def write_or_spare(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably; on a full disk by its spare. Raises OSError."""
    try:
        write_whole(path, data)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        try:
            _write_spare(path, data)
        except OSError as failed:
            raise error from failed
    keep_spare(path, len(data))


def keep_spare(path: Path, size: int) -> None:
    """Have a spare with room for `size` bytes and some more, if the disk has that."""
    needed = size + GROWTH_BYTES
    with suppress(OSError), opened(_spare(path), os.O_WRONLY | os.O_CREAT) as fd:
        if os.fstat(fd).st_blocks * _BLOCK_BYTES < needed:
            set_aside(fd, 0, needed)


def _write_spare(path: Path, data: bytes) -> None:
    spare = _spare(path)
    with opened(spare, os.O_WRONLY) as fd:
        if os.fstat(fd).st_blocks * _BLOCK_BYTES < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(spare))
        write_all_at(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    exchange_names(spare, path)


def _spare(path: Path) -> Path:
    return path.with_name(path.name + SPARE)
