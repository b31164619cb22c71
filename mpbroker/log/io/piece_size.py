"""The piece size of background work on a disk, chosen by the times that the disk takes.

A commit waits behind a piece. On a disk that begins at once the time of the piece itself counts: it has to be
small. A rotating disk, or one behind a network, takes hardly longer for half a megabyte than for a few
kilobytes, and gets large pieces; in small ones it would copy for days.
(What a device says of itself, as in `queue/rotational`, is not true of virtual ones.)
"""

from __future__ import annotations

from collections import deque
from statistics import median

# Pieces between two decisions on the size. One of them has the least size, to compare with.
ROUND = 16
# With fewer pieces of the wanted size in a round that size is not needed, and cannot be judged.
FULL_AT_LEAST = ROUND // 4
# How many times as long as one of the least size a larger piece may take. Below the second factor twice the
# size is tried.
SHRINKS_ABOVE, GROWS_BELOW = 1.5, 1.25


class PieceSize:
    """The piece size of one disk, for threads that wait for each piece. `bytes`: the size of the next one."""

    def __init__(self, least_bytes: int, most_bytes: int) -> None:
        self._least = self._usual = self.bytes = least_bytes
        self._most = most_bytes
        self._least_s: deque[float] = deque(maxlen=ROUND)
        self._usual_s: list[float] = []
        self._pieces = 0

    def took(self, count: int, disk_s: float) -> None:
        """Note that a piece of `count` bytes took the disk `disk_s` seconds. Ignores 0: the page cache."""
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
