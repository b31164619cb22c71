"""What can be wrong with a file of a log directory, and how bad that is."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import msgspec


class Severity(Enum):
    # Records that were written cannot be read, or a log contradicts what it says of itself.
    DAMAGE = "damage"
    # The end of a log that was being written when somebody stopped: the next start cuts it off.
    TORN = "torn"
    # Indexes, snapshots, checkpoints: made from the log, and made anew at the next start.
    DERIVED = "derived"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`position` is a byte in the file, `offset` the first of the log that it concerns."""

    severity: Severity
    path: str
    text: str
    position: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        at = "" if self.position is None else f" at byte {self.position:,}"
        offset = "" if self.offset is None else f" (offset {self.offset:,})"
        return f"{self.severity.value}: {self.path}{at}{offset}: {self.text}"


def finding(
    severity: Severity, path: Path, text: str, position: int | None = None, offset: int | None = None
) -> Finding:
    return Finding(severity, str(path), text, position, offset)
