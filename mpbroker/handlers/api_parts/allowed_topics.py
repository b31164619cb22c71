"""Requests about topics, forwarded without the topics that the client may not read.

The results of refused topics are added to the coordinator's response. (Kafka: the response builders of
OffsetCommit, TxnOffsetCommit and OffsetDelete.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from msgspec import structs

from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.permissions import READ_TOPIC
from mpbroker.handlers.requests.request import Outcome
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ZERO_UUID, Message


def name_of(context: RequestContext, topic: Any) -> str | None:
    """Return the name of a requested topic, found by its id if it has one; None for an unknown id."""
    topic_id = getattr(topic, "topic_id", ZERO_UUID)
    if topic_id == ZERO_UUID:
        name: str = topic.name
        return name
    known = context.broker.metadata.by_id.get(topic_id)
    return None if known is None else known.name


def forward_allowed(
    context: RequestContext,
    refused: Callable[[Any, ErrorCode], Any],
    response: Callable[[list[Any]], Message],
) -> Outcome:
    """Forward the part of a request that is about topics which its client may read.

    A request whose topics are all allowed is forwarded unchanged. `refused` returns the result of a topic
    that the client may not read, `response` the response with the results of all topics.
    """
    if context.broker.authorization.is_on:
        return _forward_some(context, refused, response)
    context.broker.forwarding.pass_on(context)
    return None


def _forward_some(
    context: RequestContext,
    refused: Callable[[Any, ErrorCode], Any],
    response: Callable[[list[Any]], Message],
) -> Generator[None, None, Message | None]:
    topics = context.body.topics
    allowed, denied = yield from context.split(READ_TOPIC, topics, lambda one: name_of(context, one))
    if not denied:
        context.broker.forwarding.pass_on(context)
        return None
    results = [refused(topic, READ_TOPIC.denied) for topic in denied]
    if not allowed:
        return response(results)
    request = structs.replace(context.body, topics=allowed)
    answer = yield from context.broker.forwarding.forward(context, context.version, request)
    return response([*results, *answer.topics])
