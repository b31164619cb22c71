"""How much a disk is given at a time by background work, as its own times show it.

Whoever commits waits behind a piece. On a disk that begins at once, what counts is how long the piece itself
takes: it is to be small. One that turns, or lies behind a network, takes hardly longer for half a megabyte
than for a few kilobytes, and is given as much; in small pieces it would copy for days.
(What a device says of itself, as in `queue/rotational`, is not true of virtual ones.)
"""

from __future__ import annotations

from collections import deque
from statistics import median

# The size is looked at again after so many pieces. One of them, where it has grown, has the least size.
ROUND = 16
# Who has fewer that are as large as wanted is not in need of that size, and it could not be judged.
FULL_AT_LEAST = ROUND // 4
# Beside one of the least size a larger piece takes at most so many times as long; twice as much is tried
# below the other.
SHRINKS_ABOVE, GROWS_BELOW = 1.5, 1.25


class PieceSize:
    """Of those who wait for each piece. `bytes`: what the disk is given next, between the two bounds."""

    def __init__(self, least_bytes: int, most_bytes: int) -> None:
        self._least = self._usual = self.bytes = least_bytes
        self._most = most_bytes
        self._least_s: deque[float] = deque(maxlen=ROUND)
        self._usual_s: list[float] = []
        self._pieces = 0

    def took(self, count: int, disk_s: float) -> None:
        """So much took so long. What memory gave says nothing."""
        if disk_s <= 0.0:
            return
        self._pieces += 1
        if count == self.bytes:
            if self.bytes == self._least:
                self._least_s.append(disk_s)
            if self.bytes == self._usual:
                self._usual_s.append(disk_s)
            self.bytes = self._usual
        if self._pieces >= ROUND:
            self._look_again()

    def _look_again(self) -> None:
        is_known = len(self._usual_s) >= FULL_AT_LEAST
        times = median(self._usual_s) / median(self._least_s) if is_known else float("inf")
        if times > SHRINKS_ABOVE:
            self._usual = max(self._usual // 2, self._least)
        elif times < GROWS_BELOW:
            self._usual = min(self._usual * 2, self._most)
        self._usual_s.clear()
        self._pieces = 0
        self.bytes = self._least
