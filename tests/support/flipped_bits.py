"""Flips of bits in segment files."""

from __future__ import annotations

import os
from pathlib import Path

RECORDS = 3


def flip(path: Path, at: int, mask: int = 0x10) -> None:
    """Flip a bit as a disk does it: the file's times stay."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ mask]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
