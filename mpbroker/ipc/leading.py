"""The leading word: until when this broker may answer for its partitions (CLOCK_BOOTTIME, in ns).

It is `ALWAYS` without a lease, and `NEVER` in a broker that does not lead. The supervisor writes it before
the first fork; after that the tier process alone does. If the tier is killed, the lease that it wrote runs
out, and its successor renews it.

Past that time handlers refuse what only the leader may answer (`handlers/requests/leadership.py`). Processors
close all connections of the data plane, once for each value of the word that has passed, without sending
answers (`network/processor/turn.pyx`). A process looks at the word when it wakes up: ring the processors'
bells after lowering it.
"""

from __future__ import annotations

from shm.clock import boot_ns
from shm.word import Words

ALWAYS = (1 << 63) - 1
NEVER = 0


def lease_left_ms(until_ms: int) -> int | None:
    """Return how long a lease lasts, by the counter of its end; 0 if it has run out, None without one."""
    return max(until_ms - boot_ns() // 1_000_000, 0) if until_ms else None


class Leading:
    """The leading word of a broker. `words` is block `leading` of the private region."""

    def __init__(self, words: Words) -> None:
        self._words = words

    @property
    def until_ns(self) -> int:
        return self._words.load(0)

    @until_ns.setter
    def until_ns(self, until_ns: int) -> None:
        self._words.store(0, until_ns)

    def leads(self) -> bool:
        """Return whether the broker may answer for its partitions now."""
        until_ns = self.until_ns
        return until_ns == ALWAYS or boot_ns() < until_ns
