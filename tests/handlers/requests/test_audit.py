"""What a handler tells the audit log: refusals, and acts of administration with their results."""

from __future__ import annotations

from mpbroker.handlers.requests.audit import act_of, as_refusal, denied, with_result
from mpbroker.handlers.requests.permissions import WRITE_TOPIC
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.security.audit import Names, as_text
from mpbroker.security.authorizer import Client, Reason, Verdict

ANN = Client("User:ann", "10.0.0.1")
BEGUN = act_of(ANN, "CLIENTS", ApiKey.CREATE_TOPICS, Names(("orders",)))


def test_a_refused_permission() -> None:
    verdict = Verdict(False, Reason.NO_ENTRY)
    event = denied(ANN, "CLIENTS", WRITE_TOPIC, "orders", ApiKey.PRODUCE, verdict)
    assert as_text(event) == (
        "User:ann from 10.0.0.1 on CLIENTS is denied Write Topic 'orders' for PRODUCE: no entry is about the "
        "resource"
    )


def test_an_act_and_its_result() -> None:
    said = "User:ann from 10.0.0.1 on CLIENTS asked for CREATE_TOPICS of 'orders'"
    assert as_text(with_result(BEGUN, {0: 1})) == f"{said}: ok"
    assert as_text(with_result(BEGUN, None)) == f"{said}: no answer"


def test_an_act_on_the_wrong_listener() -> None:
    assert as_text(as_refusal(BEGUN, "why")) == (
        "User:ann from 10.0.0.1 on CLIENTS is denied CREATE_TOPICS of 'orders': why"
    )
