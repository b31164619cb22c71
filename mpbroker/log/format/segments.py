"""A partition's segments, as retention, compaction and metrics look at them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class Sealed:
    """A segment that is written no more. A size below 0: it has not been looked at since the start."""

    base: int
    size: int = -1
    largest_ms: int = -1
    first_ms: int = -1  # of its first batch; -1: unknown, or it has none


class Segment(NamedTuple):
    """`end`: behind its last offset. `largest_ms`: of its timestamps; without any, of its last write."""

    base: int
    end: int
    size: int
    largest_ms: int
    is_active: bool = False
