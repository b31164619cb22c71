"""The memory of all members of all groups: what clients have sent, as long as groups keep it.

Kafka has no such bound: a client that joins groups without end fills the heap.
"""

from __future__ import annotations

from typing import Final

# An estimate of a member, or of a member id that was given out: objects, places in tables, a timer.
MEMBER_BYTES: Final = 1024
# An estimate of a name in a set.
NAME_BYTES: Final = 100


class MemberMemory:
    """A counter of the bytes that groups keep for their members; an estimate."""

    def __init__(self) -> None:
        self.used_bytes = 0

    def charge(self, size: int) -> None:
        """Charge bytes, or give them back if `size` is negative."""
        self.used_bytes += size
