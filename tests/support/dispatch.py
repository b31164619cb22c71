"""Feeding requests to a coordinator's state machine, as CoordinatorRuntime does with decoded requests."""

from __future__ import annotations

from collections.abc import Mapping

from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Serve
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ApiError
from mpbroker.protocol.messages import REQUESTS, Message

_KEYS = {message: ApiKey(key) for key, message in REQUESTS.items()}


def dispatch(
    served: Mapping[ApiKey, Serve], answers: Answers, context: RequestContext, request: Message
) -> None:
    """Serve a request and pass what is to be answered at once to `answers`."""
    try:
        response = served[_KEYS[type(request)]](context, request)
    except ApiError as error:
        answers.fail(context.waiter, error.code)
    else:
        if response is not None:
            answers.answer(context.waiter, response)
