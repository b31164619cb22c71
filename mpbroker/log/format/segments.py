"""Descriptions of segments for retention, compaction and metrics. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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
