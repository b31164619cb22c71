"""The segments of a partition, and descriptions of them for retention, compaction and metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mpbroker.storage.names import LOG_SUFFIX, parse_segment


@dataclass
class Sealed:
    """A segment that is not appended to any more. Sizes below 0 have not been read since the start."""

    base: int
    size: int = -1
    largest_ms: int = -1
    first_ms: int = -1  # largest timestamp of the first append; -1: unknown or none


class Segment(NamedTuple):
    """A segment. `end`: behind its last offset. `largest_ms`: its largest timestamp, else its last write."""

    base: int
    end: int
    size: int
    largest_ms: int
    is_active: bool = False


def segments_of(directory: Path) -> list[int]:
    """List the base offsets of all segments, ascending. Raises OSError."""
    return offsets_of(directory, LOG_SUFFIX)


def offsets_of(directory: Path, suffix: str) -> list[int]:
    """List the offsets in the names of files with a suffix, ascending. Raises OSError."""
    return offsets_in(os.listdir(directory), suffix)  # noqa: PTH208 - only their names


def offsets_in(names: Iterable[str], suffix: str) -> list[int]:
    """Return the offsets in those names that end in a suffix, ascending."""
    return sorted(offset for name in names if (offset := parse_segment(name, suffix)) is not None)
