"""UnregisterBroker, through a handler whose peers are the test."""

from __future__ import annotations

import pytest

from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import UnregisterBrokerRequest
from tests.support.handler_rig import Rig

READY = ()


@pytest.mark.parametrize(
    ("broker_id", "code", "message"),
    [
        (1, ErrorCode.INVALID_REQUEST, "Broker ID 1 is running, and it is the cluster's only broker"),
        (7, ErrorCode.BROKER_ID_NOT_REGISTERED, "Broker ID 7 is not currently registered"),
    ],
)
def test_no_broker_is_removed(ready: Rig, broker_id: int, code: ErrorCode, message: str) -> None:
    response = ready.ask(64, 0, UnregisterBrokerRequest(broker_id))
    assert (response.error_code, response.error_message) == (code, message)
