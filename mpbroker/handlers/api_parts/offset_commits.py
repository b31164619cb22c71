"""Offset commits on their way to the coordinator.

All offsets of a commit become one batch of records. A commit that cannot be one is refused here, as Kafka
refuses it. One of very many offsets goes to the coordinator a part at a time, so that it does not hold up
heartbeats there: each part is committed as a whole, and the response has the outcome of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from mpbroker.handlers.api_parts.allowed_topics import forward_allowed, name_of
from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.exchange import Outcome
from mpbroker.handlers.requests.permissions import READ_TOPIC
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message

# Size of an offset's record without the names of its group and topic.
SMALLEST_RECORD_BYTES = 40
# Size of a partition, its offset and its metadata in a request.
SMALLEST_PARTITION_BYTES = 14
# Offsets that the coordinator is asked to commit at once: some ms of its work.
COMMITTED_AT_ONCE = 2_000


def pass_on_commit(
    exchange: ApiExchange,
    refused: Callable[[Any, ErrorCode], Any],
    response: Callable[[list[Any]], Message],
) -> Outcome:
    """Pass a commit on to the coordinator, unless it is too much for one batch.

    `refused` and `response` are for topics that the client may not read: see `forward_allowed`.
    """
    most_bytes = exchange.broker.config.message_max_bytes
    raw = exchange.raw_body()
    # Requests that are surely small enough are not decoded.
    may_be_large = len(raw) > surely_small(most_bytes)
    if (exchange.is_long or may_be_large) and is_too_large(exchange.body, most_bytes):
        exchange.fail(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        return None
    if exchange.is_long:
        return _forward_in_parts(exchange, refused, response)
    return forward_allowed(exchange, refused, response)


def surely_small(most_bytes: int) -> int:
    """Return the size of a request up to which its records surely have no more than `most_bytes`."""
    return most_bytes // SMALLEST_RECORD_BYTES * SMALLEST_PARTITION_BYTES


def is_too_large(request: Any, most_bytes: int) -> bool:
    """Return True if the records of the commit surely have more than `most_bytes`."""
    of_each = SMALLEST_RECORD_BYTES + len(request.group_id)
    return sum((of_each + len(topic.name)) * len(topic.partitions) for topic in request.topics) > most_bytes


def _forward_in_parts(
    exchange: ApiExchange,
    refused: Callable[[Any, ErrorCode], Any],
    response: Callable[[list[Any]], Message],
) -> Generator[None, None, Message | None]:
    topics = exchange.body.topics
    allowed, denied = yield from exchange.split(READ_TOPIC, topics, lambda one: name_of(exchange, one))
    results = [refused(topic, READ_TOPIC.denied) for topic in denied]
    parts = parts_of(allowed)
    part = next(parts, None)
    if part is None:
        return response(results)

    def following(answer: Any) -> Message | None:
        nonlocal part
        topics = answer.topics
        if part is not None and part.begins_within and topics:
            results[-1].partitions += topics.pop(0).partitions
        results.extend(topics)
        part = next(parts, None)
        if part is None:
            return None
        request: Message = structs.replace(exchange.body, topics=part.topics)
        return request

    exchange.broker.forwarding.forward_in_parts(
        exchange,
        exchange.version,
        structs.replace(exchange.body, topics=part.topics),
        following,
        lambda: response(results),
    )
    return None


class Part(NamedTuple):
    """Topics that are committed at once. `begins_within`: the first is the rest of the last one before."""

    topics: list[Any]
    begins_within: bool


def parts_of(topics: Sequence[Any]) -> Iterator[Part]:
    """Split topics into parts of at most `COMMITTED_AT_ONCE` partitions; a topic counts as one at least."""
    some: list[Any] = []
    room, begins_within = COMMITTED_AT_ONCE, False
    for topic in topics:
        at = 0
        while at == 0 or at < len(topic.partitions):
            taken = topic.partitions[at : at + room]
            if not some:
                begins_within = at > 0
            some.append(structs.replace(topic, partitions=taken))
            at += max(1, len(taken))
            room -= max(1, len(taken))
            if room == 0:
                yield Part(some, begins_within)
                some, room = [], COMMITTED_AT_ONCE
    if some:
        yield Part(some, begins_within)
