"""How fast a background process may read and write (Kafka: Throttler)."""

from __future__ import annotations


class Pace:
    """Bytes per second, counted from a beginning: whoever is late may catch up."""

    def __init__(self, bytes_per_s: float, started: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._started = started
        self._bytes = 0

    def due(self, count: int) -> float:
        """When to go on, after so many bytes more."""
        self._bytes += count
        return self._started + self._bytes / self._bytes_per_s
