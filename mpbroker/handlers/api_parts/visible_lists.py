"""Lists from the coordinator, without the items that the client may not see."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.permissions import Need
from mpbroker.protocol.messages import Message


def list_visible(
    context: RequestContext, field: str, need: Need, name_of: Callable[[Any], str]
) -> Generator[None, None, Message]:
    """Forward a request for a list; return the response with the items whose names the client may see.

    `field` names the response's field with the list; `name_of` returns the name of an item.
    """
    response: Message = yield from context.broker.forwarding.forward(context, context.version, context.body)
    allows = context.broker.authorization.allows
    found = [one for one in getattr(response, field) if allows(context, need, name_of(one), is_logged=False)]
    setattr(response, field, found)
    return response
