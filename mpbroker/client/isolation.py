"""Levels of isolation by the names of Kafka's consumers (isolation.level)."""

from __future__ import annotations

from mpbroker.client.errors import BadText
from mpbroker.protocol.numbers import READ_COMMITTED, READ_UNCOMMITTED

LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


def parse_isolation(text: str) -> int:
    """Return the number of a level in Fetch and ListOffsets requests. Raises BadText."""
    if text not in LEVELS:
        raise BadText(f"a level is one of {', '.join(LEVELS)}")
    return LEVELS[text]
