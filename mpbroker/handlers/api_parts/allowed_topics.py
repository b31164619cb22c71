"""Requests about topics of which the client may use some only: those are forwarded, the others refused.

(Kafka: the response builders of OffsetCommit, TxnOffsetCommit and OffsetDelete merge both parts.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from msgspec import structs

from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.exchange import Outcome
from mpbroker.handlers.requests.permissions import READ_TOPIC
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ZERO_UUID, Message


def name_of(exchange: ApiExchange, topic: Any) -> str | None:
    """Return the name of a topic in a request, which may have its id instead; None if nothing has that id."""
    topic_id = getattr(topic, "topic_id", ZERO_UUID)
    if topic_id == ZERO_UUID:
        name: str = topic.name
        return name
    known = exchange.broker.metadata.by_id.get(topic_id)
    return None if known is None else known.name


def forward_allowed(
    exchange: ApiExchange,
    refused: Callable[[Any, ErrorCode], Any],
    response: Callable[[list[Any]], Message],
) -> Outcome:
    """Forward the part of a request that is about topics which its client may read.

    It goes as it came if all of it is allowed. `refused` makes the result of a topic that the client may not
    read, `response` the answer from results.
    """
    if exchange.broker.authorization.is_on:
        return _forward_some(exchange, refused, response)
    exchange.broker.forwarding.pass_on(exchange)
    return None


def _forward_some(
    exchange: ApiExchange,
    refused: Callable[[Any, ErrorCode], Any],
    response: Callable[[list[Any]], Message],
) -> Generator[None, None, Message | None]:
    topics = exchange.body.topics
    allowed, denied = yield from exchange.split(READ_TOPIC, topics, lambda one: name_of(exchange, one))
    if not denied:
        exchange.broker.forwarding.pass_on(exchange)
        return None
    results = [refused(topic, READ_TOPIC.denied) for topic in denied]
    if not allowed:
        return response(results)
    exchange.broker.forwarding.forward_in_parts(
        exchange,
        exchange.version,
        structs.replace(exchange.body, topics=allowed),
        lambda answer: results.extend(answer.topics),
        lambda: response(results),
    )
    return None
