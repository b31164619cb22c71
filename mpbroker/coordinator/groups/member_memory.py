"""An estimate of the memory that the members of all groups take, which group.max.members.bytes bounds."""

from __future__ import annotations

from typing import Final

# An estimate of a member, or of a member id that was given out: objects, places in tables, a timer.
MEMBER_BYTES: Final = 1024
# An estimate of a name in a set.
NAME_BYTES: Final = 100


class MemberMemory:
    """An estimate of the bytes that all groups together keep for their members.

    Joins are refused above group.max.members.bytes. (Kafka has no such bound, so clients can fill its heap.)
    """

    def __init__(self) -> None:
        self.used_bytes = 0

    def charge(self, size: int) -> None:
        """Add `size` bytes to the estimate; a negative size reduces it."""
        self.used_bytes += size
