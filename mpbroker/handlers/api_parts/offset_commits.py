"""Checks of offset commits before they go to the coordinator.

All offsets of a commit become one batch of records. A commit that cannot be one is refused here, so that it
does not hold up heartbeats in the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, Protocol

from mpbroker.handlers.api_parts.allowed_topics import forward_allowed
from mpbroker.handlers.broker import ApiExchange
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message

# Size of an offset's record without the names of its group and topic.
SMALLEST_RECORD_BYTES = 40
# Size of a partition, its offset and its metadata in a request.
SMALLEST_PARTITION_BYTES = 14


class OfTopic(Protocol):
    @property
    def partitions(self) -> Sized: ...


def pass_on_commit(
    exchange: ApiExchange,
    refused: Callable[[Any, ErrorCode], Any],
    response: Callable[[list[Any]], Message],
) -> None:
    """Pass a commit on to the coordinator, unless it is too much for one batch.

    `refused` and `response` are for topics that the client may not read: see `forward_allowed`.
    """
    most_bytes = exchange.broker.config.message_max_bytes
    raw = exchange.raw_body()
    # Requests that are surely small enough are not decoded.
    may_be_large = len(raw) > most_bytes // SMALLEST_RECORD_BYTES * SMALLEST_PARTITION_BYTES
    if may_be_large and is_too_large(exchange.body.topics, most_bytes):
        exchange.fail(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    else:
        forward_allowed(exchange, refused, response, lambda: exchange.broker.forwarding.pass_on(exchange))


def is_too_large(topics: Sequence[OfTopic], most_bytes: int) -> bool:
    named = sum(len(topic.partitions) for topic in topics)
    return named * SMALLEST_RECORD_BYTES > most_bytes
