"""What the log directory of the inspection tests holds."""

from __future__ import annotations

BATCHES = 30


RECORDS = 3
