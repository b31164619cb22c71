"""Offset commits on their way to the coordinator.

All offsets of a commit become one batch of records. A commit that is too large for one batch is refused here,
as in Kafka. A commit of very many offsets goes to the coordinator in parts, so that heartbeats there do not
wait for all of it. Each part is committed as a whole, and the response has the result of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from mpbroker.handlers.api_parts.allowed_topics import forward_allowed, name_of
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.permissions import READ_TOPIC
from mpbroker.handlers.requests.request import Outcome
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message

# Size of an offset's record without the names of its group and topic.
SMALLEST_RECORD_BYTES = 40
# Size of a partition, its offset and its metadata in a request.
SMALLEST_PARTITION_BYTES = 14
# Offsets that the coordinator is asked to commit at once: some ms of its work.
COMMITTED_AT_ONCE = 2_000


def pass_on_commit(
    context: RequestContext,
    refused: Callable[[Any, ErrorCode], Any],
    response: Callable[[list[Any]], Message],
) -> Outcome:
    """Pass a commit on to the coordinator, or refuse a commit that is too large for one batch.

    `refused` and `response` are the same as in `forward_allowed`.
    """
    most_bytes = context.broker.config.message_max_bytes
    raw = context.raw_body()
    # Requests that are surely small enough are not decoded.
    may_be_large = len(raw) > inline_bytes_max(most_bytes)
    if (context.is_long or may_be_large) and is_too_large(context.body, most_bytes):
        context.fail(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        return None
    if context.is_long:
        return _forward_in_parts(context, refused, response)
    return forward_allowed(context, refused, response)


def inline_bytes_max(most_bytes: int) -> int:
    """Return a size in bytes up to which `is_too_large` is False for every request."""
    return most_bytes // SMALLEST_RECORD_BYTES * SMALLEST_PARTITION_BYTES


def is_too_large(request: Any, most_bytes: int) -> bool:
    """Return True if even the smallest possible records of the commit have more than `most_bytes`."""
    of_each = SMALLEST_RECORD_BYTES + len(request.group_id)
    return sum((of_each + len(topic.name)) * len(topic.partitions) for topic in request.topics) > most_bytes


def _forward_in_parts(
    context: RequestContext,
    refused: Callable[[Any, ErrorCode], Any],
    response: Callable[[list[Any]], Message],
) -> Generator[None, None, Message | None]:
    topics = context.body.topics
    allowed, denied = yield from context.split(READ_TOPIC, topics, lambda one: name_of(context, one))
    results = [refused(topic, READ_TOPIC.denied) for topic in denied]
    for part in parts_of(allowed):
        request = structs.replace(context.body, topics=part.topics)
        answer = yield from context.broker.forwarding.forward(context, context.version, request)
        topics = answer.topics
        if part.begins_within and topics:
            results[-1].partitions += topics.pop(0).partitions
        results.extend(topics)
    return response(results)


class Part(NamedTuple):
    """A part of a commit. `begins_within`: True if its first topic began in the part before."""

    topics: list[Any]
    begins_within: bool


def parts_of(topics: Sequence[Any]) -> Iterator[Part]:
    """Split topics into parts of up to COMMITTED_AT_ONCE partitions. An empty topic counts as a partition."""
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
