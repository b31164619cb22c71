"""The partitions of a coordinator's topic: which one a name belongs to, and how far each is."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache


class PartitionState(Enum):
    """How far a partition of the topic is."""

    LOADING = 0
    LOADED = 1
    OFFLINE = 2


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """String.hashCode, and Utils.abs of it."""
    value = 0
    data = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "little")) & 0xFFFFFFFF
    if value == 1 << 31:
        return 0
    return value if value < 1 << 31 else (1 << 32) - value
