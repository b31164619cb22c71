"""What lies below a directory, to compare it with what is there later."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """A file or directory. `content` is None for a directory."""

    mode: str
    modified_ns: int
    content: bytes | None


def tree(directory: Path) -> dict[str, Entry]:
    """Reads everything below the directory, by relative path; the directory itself is `.`."""
    return {str(path.relative_to(directory)): _entry(path) for path in (directory, *directory.rglob("*"))}


def _entry(path: Path) -> Entry:
    found = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(found.st_mode) else None
    return Entry(stat.filemode(found.st_mode), found.st_mtime_ns, content)
