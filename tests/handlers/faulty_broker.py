"""The broker with APIs that fail for clients which ask for it by their client id. Run with `-m`, as mpbroker.

The faults are put around the registered functions before the supervisor forks, so the product has no seam for
them and nothing to pay for it.
"""

from __future__ import annotations

import dataclasses

from mpbroker.cli.main import main
from mpbroker.handlers import apis
from mpbroker.handlers.apis import Api
from mpbroker.handlers.exchange import Exchange
from mpbroker.ipc.process import FatalError
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message

RAISES = "raises"
RAISES_TWICE = "raises, and its error response does too"
ANSWERS_NONSENSE = "answers with what cannot be encoded"
IS_FATAL = "cannot go on"
FATAL_STATUS = 5


class Nonsense(Message):
    pass


def faulty(api: Api) -> Api:
    def handle(exchange: Exchange) -> Message | None:
        if exchange.client_id in (RAISES, RAISES_TWICE):
            raise RuntimeError(f"{api.name} is broken")
        if exchange.client_id == ANSWERS_NONSENSE:
            return Nonsense()
        if exchange.client_id == IS_FATAL:
            raise FatalError(f"{api.name}: the planet is gone. Find another", status=FATAL_STATUS)
        return api.handle(exchange)

    def failed(exchange: Exchange, code: ErrorCode) -> Message | None:
        if exchange.client_id == RAISES_TWICE:
            raise RuntimeError(f"{api.name} is broken twice")
        return api.failed(exchange, code)

    return dataclasses.replace(api, handle=handle, failed=failed)


if __name__ == "__main__":
    apis._registered.update({key: faulty(api) for key, api in apis.all_apis().items()})
    main()
