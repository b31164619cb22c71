"""Commits of offsets: all of one is one batch of records. What cannot be one is refused before it comes to
the coordinator, so that it holds up nobody's heartbeats.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Protocol

from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.exchange import NAMED_MAX
from mpbroker.protocol.errors import ErrorCode

# Of an offset, whatever the names of its group and topic.
SMALLEST_RECORD_BYTES = 40
# A partition, its offset and its metadata in a request.
SMALLEST_PARTITION_BYTES = 14


class OfTopic(Protocol):
    @property
    def partitions(self) -> Sized: ...


def pass_on_commit(exchange: ApiExchange) -> None:
    """Pass a commit on to the coordinator, unless it is too much for one batch."""
    most_bytes = exchange.broker.config.message_max_bytes
    small = min(NAMED_MAX, most_bytes // SMALLEST_RECORD_BYTES * SMALLEST_PARTITION_BYTES)
    # Short requests are not looked into.
    if len(exchange.raw_body()) <= small or not is_refused(exchange, exchange.body.topics, most_bytes):
        exchange.broker.forwarding.pass_on(exchange)


def is_refused(exchange: ApiExchange, topics: Sequence[OfTopic], most_bytes: int) -> bool:
    """Whether that was too much for one commit; then it has been answered, or its connection closed."""
    if exchange.names_too_many(len(topics)):
        return True
    named = sum(len(topic.partitions) for topic in topics)
    if named * SMALLEST_RECORD_BYTES > most_bytes:
        exchange.fail(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        return True
    return False
