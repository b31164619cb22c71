"""Refusals in the log: each with all that an auditor asks for, and never more than so many."""

from __future__ import annotations

import logging

import pytest

from mpbroker.handlers.requests import audit
from mpbroker.handlers.requests.audit import EVERY_MS, LINES_EACH, Audit
from mpbroker.handlers.requests.permissions import WRITE_TOPIC
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.security.authorizer import Client, Reason, Verdict

DENIED = Verdict(False, Reason.NO_ENTRY)


@pytest.fixture(name="lines")
def _lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    return caplog


def refuse(made: Audit, principal: str, name: str = "orders", now_ms: int = 0) -> None:
    made.refused(now_ms, Client(principal, "10.0.0.1"), WRITE_TOPIC, name, ApiKey.PRODUCE, DENIED)


def test_a_principal_has_so_many_lines_a_minute(lines: pytest.LogCaptureFixture) -> None:
    made = Audit()
    for number in range(LINES_EACH + 5):
        refuse(made, "User:ann", f"t{number}")
    refuse(made, "User:bob")
    assert len(lines.messages) == LINES_EACH + 1
    assert lines.messages[0] == (
        "User:ann from 10.0.0.1 is denied Write Topic 't0' for PRODUCE: no entry is about the resource"
    )
    lines.clear()
    made.follow(EVERY_MS - 1)
    assert lines.messages == []
    made.follow(EVERY_MS)
    assert lines.messages == ["User:ann: 5 more refusals in the last 60 s"]
    refuse(made, "User:ann", now_ms=EVERY_MS)
    assert len(lines.messages) == 2


def test_very_many_principals_share_their_lines(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PRINCIPALS_MAX", 2)
    made = Audit()
    for number in range(LINES_EACH + 4):
        refuse(made, f"User:{number}")
    assert len(lines.messages) == LINES_EACH + 2
    made.follow(EVERY_MS)
    assert lines.messages[-1] == "other principals: 2 more refusals in the last 60 s"


def test_long_names_are_cut(lines: pytest.LogCaptureFixture) -> None:
    refuse(Audit(), "User:ann", "x" * 30_000)
    assert len(lines.messages[0]) < 500
