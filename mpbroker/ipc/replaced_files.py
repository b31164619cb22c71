"""Small JSON files in a log directory: one process replaces them as a whole, others read them meanwhile."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

# As often as an idle process wakes up (`process.IDLE_SLEEP_MS`).
POLL_S: Final = 0.9
_log = logging.getLogger("mpbroker.ipc")


def write_json(path: Path, content: msgspec.Struct) -> None:
    """Replace a file, so that readers see the old content or the new one. Raises OSError."""
    making = path.with_name(f"{path.name}.tmp")
    try:
        making.write_bytes(msgspec.json.encode(content) + b"\n")
        making.rename(path)
    except OSError:
        making.unlink(missing_ok=True)
        raise


def read_json(path: Path, kind: type[T]) -> T | None:
    """Return the content of a file, or None if there is no such file. Raises OSError, msgspec.DecodeError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None


class FollowedFile(Generic[T]):
    """A file that is read again after it was replaced. `content` is None as long as there is no file."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self.content: T | None = None
        self._kind = kind
        self._seen: tuple[int, int] | None = None
        self._due_s = 0.0

    def poll(self) -> bool:
        """Read the file if it was replaced. Return whether the content has changed.

        It looks at most once in POLL_S. A file that cannot be read is logged, and the content stays.
        """
        if (now_s := time.monotonic()) < self._due_s:
            return False
        self._due_s = now_s + POLL_S
        before = self.content
        try:
            if (version := self._version()) == self._seen:
                return False
            self._seen = version
            self.content = read_json(self.path, self._kind)
        except (OSError, msgspec.DecodeError) as error:
            _log.error("%s cannot be read, what it said before stays in force: %s", self.path, error)
        return self.content != before

    def _version(self) -> tuple[int, int] | None:
        """Return what differs after each replacement. Raises OSError."""
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return None
        return now.st_ino, now.st_mtime_ns
