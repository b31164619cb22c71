"""A segment of which one byte cannot be read: run by itself, with `native/fault.c` loaded.

    LD_PRELOAD=… python -m tests.support.bad_sector DIRECTORY WHOLE

`WHOLE`: 1 if a read that covers the byte fails, 0 if it ends in front of it. The byte is the first of the
last batch but one. Prints the offset of each batch that a reader finds, and the error in place of others.
"""

import ctypes
import os
import sys
from contextlib import closing
from pathlib import Path

from mpbroker.storage.reader import Bound, PartitionReader
from tests.support.compacted_segments import Segments

BATCHES = 5
VALUE_BYTES = 1_000


def found(directory: Path, offset: int, bound: Bound) -> str:
    with closing(PartitionReader(directory)) as reader:
        try:
            at = reader.locate(offset, bound)
        except OSError as error:
            return os.strerror(error.errno)
    return str(at.base_offset) if at else "nothing"


def main() -> None:
    directory, is_whole = Path(sys.argv[1]), int(sys.argv[2])
    log = Segments(directory)
    starts = []
    for _ in range(BATCHES):
        starts.append(log.path(0).stat().st_size if starts else 0)
        log.append([(b"key", bytes(VALUE_BYTES))])
    bound = Bound(log.end, 0, log.path(0).stat().st_size)
    ctypes.CDLL(None).fault_sector(os.fsencode(directory), ctypes.c_long(starts[-2]), is_whole)
    print(*(found(directory, offset, bound) for offset in range(BATCHES)), sep="\n")


if __name__ == "__main__":
    main()
