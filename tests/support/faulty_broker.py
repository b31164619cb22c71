"""The broker with APIs that fail for clients which ask for it by their client id. Run with `-m`, as mpbroker.

The faults are put around the registered functions, and around what goes on with a request when others have
answered, before the supervisor forks, so the product has no seam for them and nothing to pay for it.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from typing import Any

from mpbroker.cli.entry import main
from mpbroker.coordinator.runtime.requests import Answers
from mpbroker.handlers import apis
from mpbroker.handlers.apis import k00_produce
from mpbroker.handlers.apis.k01_fetch import Fetch
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.requests.request import Api, Outcome, ReceivedRequest
from mpbroker.handlers.requests.response import PendingRequest
from mpbroker.ipc.process import FatalError
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message

RAISES = "raises"
RAISES_TWICE = "raises, and its error response does too"
ANSWERS_NONSENSE = "answers with what cannot be encoded"
RAISES_LATER = "raises when the log process or the coordinator has answered"
RAISES_AT_A_LOOK = "raises when it looks whether a fetch is complete"
RAISES_AT_THE_END = "raises when the time of a fetch is over"
RAISES_IN_DECODING = "raises before there is a request"
RAISES_IN_A_PIECE = "raises in a piece of a heavy request"
HANGS = "never comes back"
DIES = "takes its process along"
IS_FATAL = "cannot go on"
FATAL_STATUS = 5


class Nonsense(Message):
    pass


def faulty(api: Api) -> Api:
    def handle(context: RequestContext) -> Outcome:
        if context.client_id in (RAISES, RAISES_TWICE):
            raise RuntimeError(f"{api.name} is broken")
        if context.client_id == ANSWERS_NONSENSE:
            return Nonsense()
        if context.client_id == HANGS:
            signal.pause()
        if context.client_id == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        if context.client_id == IS_FATAL:
            raise FatalError(f"{api.name}: the planet is gone. Find another", status=FATAL_STATUS)
        return api.handle(context)

    def failed(context: RequestContext, code: ErrorCode) -> Message | None:
        if context.client_id == RAISES_TWICE:
            raise RuntimeError(f"{api.name} is broken twice")
        return api.failed(context, code)

    return dataclasses.replace(api, handle=handle, failed=failed)


def broken(*_: object) -> Any:
    raise RuntimeError("it is broken")


def put_around(owner: Any, name: str, is_faulty: Callable[..., bool]) -> None:
    """Calls for which `is_faulty` raise."""
    real = getattr(owner, name)
    setattr(
        owner,
        name,
        lambda *args, **options: (broken if is_faulty(*args, **options) else real)(*args, **options),
    )


def put_faults() -> None:
    later = PendingRequest.later
    PendingRequest.later = lambda context, then: later(  # type: ignore[method-assign]
        context, broken if context.client_id == RAISES_LATER else then
    )
    put_around(
        Fetch,
        "poll",
        lambda fetch: fetch.context.client_id == (RAISES_AT_THE_END if fetch.overdue else RAISES_AT_A_LOOK),
    )
    put_around(ReceivedRequest, "_decode", lambda context: context.client_id == RAISES_IN_DECODING)
    put_around(Answers, "open", lambda _, request: request.client_id == RAISES_IN_DECODING)
    put_around(k00_produce, "check", lambda context, *_: context.client_id == RAISES_IN_A_PIECE)


if __name__ == "__main__":
    put_faults()
    apis._registered.update({key: faulty(api) for key, api in apis.all_apis().items()})
    main()
