"""The memory of all members of all groups: what clients have sent, as long as groups keep it.

Kafka has no such bound: a client that joins groups without end fills the heap.
"""

from __future__ import annotations

from typing import Final

# A member or an id that was given out, with its places in tables and its timer; a name in a set.
MEMBER_BYTES: Final = 1024
NAME_BYTES: Final = 100


class MemberMemory:
    """`used_bytes` is an estimate. A group charges what it keeps and gives back what it no longer does."""

    def __init__(self) -> None:
        self.used_bytes = 0

    def charge(self, size: int) -> None:
        """Charge bytes, or give them back if `size` is negative."""
        self.used_bytes += size
