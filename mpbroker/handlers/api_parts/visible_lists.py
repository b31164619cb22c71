"""Lists from the coordinator, without what the client may not see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpbroker.handlers.broker import ApiExchange
from mpbroker.handlers.requests.permissions import Need


def list_visible(exchange: ApiExchange, field: str, need: Need, name_of: Callable[[Any], str]) -> None:
    """Forward a request for a list, and answer with the items whose names the client may see.

    `field` is the response's field with the list.
    """
    answers: list[Any] = []

    def visible() -> Any:
        (response,) = answers
        allows = exchange.broker.authorization.allows
        found = [
            one for one in getattr(response, field) if allows(exchange, need, name_of(one), is_told=False)
        ]
        setattr(response, field, found)
        return response

    exchange.broker.forwarding.forward_in_parts(
        exchange, exchange.version, exchange.body, lambda answer: answers.append(answer), visible
    )
