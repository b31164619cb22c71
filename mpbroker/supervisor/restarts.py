"""The delay before a dead child is started again (sans-I/O)."""

from __future__ import annotations

from dataclasses import dataclass

# A child that lived this long was not in a restart loop.
HEALTHY_AFTER_MS = 2_000
FIRST_DELAY_MS = 50
LONGEST_DELAY_MS = 5_000
DEATHS_IN_A_ROW_MAX = 10


@dataclass
class RestartPolicy:
    """The deaths of one role.

    The delay doubles while it dies young, up to `DEATHS_IN_A_ROW_MAX` such deaths.
    """

    young_deaths: int = 0
    deaths: int = 0

    def died(self, lived_ms: float) -> int | None:
        """Return the delay until the successor starts, in ms: 0 if the child was healthy, None to give up."""
        self.deaths += 1
        if lived_ms >= HEALTHY_AFTER_MS:
            self.young_deaths = 0
            return 0
        self.young_deaths += 1
        if self.young_deaths >= DEATHS_IN_A_ROW_MAX:
            return None
        return min(LONGEST_DELAY_MS, FIRST_DELAY_MS << (self.young_deaths - 1))
