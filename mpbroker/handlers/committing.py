"""Commits of offsets: all of one is one batch of records. What cannot be one is refused before it comes to
the coordinator, so that it holds up nobody's heartbeats.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Protocol

from mpbroker.handlers.exchange import Exchange
from mpbroker.protocol.errors import ErrorCode

# Of an offset, whatever the names of its group and topic.
SMALLEST_RECORD_BYTES = 40


class OfTopic(Protocol):
    @property
    def partitions(self) -> Sized: ...


def is_refused(exchange: Exchange, topics: Sequence[OfTopic]) -> bool:
    """Whether that was too much for one commit; then it has been answered, or its connection closed."""
    if exchange.names_too_many(len(topics)):
        return True
    named = sum(len(topic.partitions) for topic in topics)
    if named * SMALLEST_RECORD_BYTES > exchange.broker.config.message_max_bytes:
        exchange.fail(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        return True
    return False
