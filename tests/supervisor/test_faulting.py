"""Who may ask a broker for faults, and for which."""

from __future__ import annotations

import re

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.faults import Fault
from mpbroker.ipc.process import FatalError
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.supervisor.faulting import Faulting

HITS = "/nowhere"
PRODUCE = ApiKey.PRODUCE


def test_a_broker_that_nobody_owns_refuses_all() -> None:
    with pytest.raises(FatalError, match=r"faults are for brokers that mpbroker\.testing has started"):
        Faulting().ask([Fault(HITS, PRODUCE, closes=True)], BrokerConfig())
    with pytest.raises(FatalError):
        Faulting().ask([], BrokerConfig())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault(HITS, PRODUCE), "needs a delay, an error code or a closed connection"),
        (Fault(HITS, PRODUCE, closes=True, error_code=1), "not both"),
        (Fault(HITS, PRODUCE, delay_ms=-1), "delay_ms=-1, times=0"),
        (Fault(HITS, PRODUCE, closes=True, times=-2), "delay_ms=0, times=-2"),
        (Fault(HITS, PRODUCE, error_code=9999), "no error code 9999"),
        (Fault(HITS, 9999, closes=True), "no API with key 9999"),
        (Fault(HITS, ApiKey.SASL_HANDSHAKE, closes=True), "SASL_HANDSHAKE is answered before the login"),
        (Fault(HITS, ApiKey.SASL_AUTHENTICATE, closes=True), "SASL_AUTHENTICATE is answered before"),
    ],
)
def test_what_cannot_be(fault: Fault, told: str) -> None:
    faulting = Faulting()
    faulting.is_allowed = True
    with pytest.raises(ValueError, match=re.escape(told)):
        faulting.ask([Fault(HITS, PRODUCE, error_code=ErrorCode.NOT_COORDINATOR), fault], BrokerConfig())
