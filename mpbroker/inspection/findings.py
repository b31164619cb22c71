"""Findings about files of a log directory, and their severities."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import msgspec


class Severity(Enum):
    # Written records cannot be read, or a log contradicts its own checkpoints.
    DAMAGE = "damage"
    # The end of a log that was being written when its broker stopped: the next start cuts it off.
    TORN = "torn"
    # Indexes, snapshots, checkpoints: derived from the log, and rebuilt at the next start.
    DERIVED = "derived"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fault or fact about a file. `position`: a byte in the file. `offset`: the first offset concerned."""

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
