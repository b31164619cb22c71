"""Lines of the audit log: all that an auditor asks for, in one line each, and never more than so many."""

from __future__ import annotations

import json

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.protocol.errors import ErrorCode
from mpbroker.security import audit
from mpbroker.security.audit import (
    ACTS_EACH,
    EVERY_MS,
    LINES_EACH,
    NAMES_MAX,
    Audit,
    Entry,
    Event,
    Gap,
    Kind,
    LeftOut,
    Names,
    as_json,
    as_text,
    cut,
    line,
    result_of,
)

EVIL = "x\n2026-01-01T00:00:00.000Z User:root from ::1 on A has logged in: PLAIN\x1b[31m\u202e\u2028"


def event(kind: Kind = Kind.REFUSAL, principal: str = "User:ann", **more: str) -> Event:
    return Event(kind, principal, "10.0.0.1", "CLIENTS", "CREATE_TOPICS", **more)


def told(level: str = "INFO") -> tuple[Audit, list[Entry]]:
    lines: list[Entry] = []
    return Audit(lambda: BrokerConfig(audit_log_level=level), lines.append), lines


@pytest.mark.parametrize("kind", Kind)
def test_each_has_so_many_lines_a_minute(kind: Kind) -> None:
    made, lines = told()
    most = ACTS_EACH if kind is Kind.ADMINISTRATION else LINES_EACH
    for _ in range(most + 5):
        made.tell(0, event(kind))
    made.tell(0, event(kind, "User:bob"))
    assert len(lines) == most + 1
    lines.clear()
    made.follow(EVERY_MS - 1)
    assert lines == []
    made.follow(EVERY_MS)
    assert lines == [LeftOut(kind, "User:ann", 5)]
    made.tell(EVERY_MS, event(kind))
    assert len(lines) == 2


def test_one_kind_hides_no_other() -> None:
    made, lines = told()
    for _ in range(LINES_EACH * 2):
        made.tell(0, event(Kind.REFUSAL))
    made.tell(0, event(Kind.ADMINISTRATION))
    assert lines[-1] == event(Kind.ADMINISTRATION)


def test_an_address_counts_where_nobody_is_logged_in() -> None:
    made, lines = told()
    for _ in range(LINES_EACH + 1):
        made.tell(0, event(Kind.REFUSED_LOGIN, ""))
    made.close()
    assert lines[-1] == LeftOut(Kind.REFUSED_LOGIN, "10.0.0.1", 1)


def test_very_many_principals_share_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PRINCIPALS_MAX", 2)
    made, lines = told()
    for number in range(LINES_EACH + 4):
        made.tell(0, event(principal=f"User:{number}"))
    assert len(lines) == LINES_EACH + 2
    made.follow(EVERY_MS)
    assert as_text(lines[-1]) == "others: 2 more refusals in the last 60 s"


def test_a_crowd_that_fails_to_log_in_hides_nobody_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PRINCIPALS_MAX", 2)
    made, lines = told()
    for number in range(LINES_EACH + 4):
        failed = event(Kind.REFUSED_LOGIN, "")._replace(client=f"10.0.0.{number}")
        made.tell(0, failed)
        made.tell(0, event(Kind.LOGIN, f"User:{number % 2}"))
    assert len([one for one in lines if one.kind is Kind.LOGIN]) == LINES_EACH + 4
    assert len([one for one in lines if one.kind is Kind.REFUSED_LOGIN]) == LINES_EACH + 2


def test_a_crowd_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "LINES_ALL", 30)
    made, lines = told()
    for minute in range(2):
        for number in range(50):
            failed = event(Kind.REFUSED_LOGIN, "")._replace(client=f"2001:db8::{number}")
            made.tell(minute * EVERY_MS, failed)
        assert len(lines) == 30
        made.tell(minute * EVERY_MS, event(Kind.LOGIN))
        assert lines.pop() == event(Kind.LOGIN), "it has a bound of its own"
        lines.clear()
        made.follow((minute + 1) * EVERY_MS)
        assert lines == [LeftOut(Kind.REFUSED_LOGIN, f"2001:db8::{n}", 1) for n in range(30, 50)]
        lines.clear()


def test_long_names_of_principals_are_not_remembered() -> None:
    made, lines = told()
    for number in range(LINES_EACH + 1):
        made.tell(0, event(principal=f"{'x' * 10_000}{number}"))
    made.close()
    assert lines[-1] == LeftOut(Kind.REFUSAL, cut("x" * 10_000), 1)


@pytest.mark.parametrize(
    ("level", "kinds"),
    [("INFO", set(Kind)), ("WARN", {Kind.REFUSED_LOGIN, Kind.REFUSAL}), ("OFF", set())],
)
def test_a_level_leaves_out_what_is_below_it(level: str, kinds: set[Kind]) -> None:
    made, lines = told(level)
    for kind in Kind:
        made.tell(0, event(kind))
    assert {one.kind for one in lines} == kinds


def test_what_the_lines_say() -> None:
    names = Names.of([("orders",), ("new", 3)])
    login = Event(Kind.LOGIN, "User:ann", "::1", "TLS", "SCRAM-SHA-256 (TLSv1.3)")
    assert as_text(login) == "User:ann from ::1 on TLS has logged in: SCRAM-SHA-256 (TLSv1.3)"
    refused = Event(Kind.REFUSED_LOGIN, "", "::1", "TLS", "login", Names.of([("ann",)]), why="bad")
    assert as_text(refused) == "a client from ::1 on TLS has failed to log in as 'ann': bad"
    act = event(Kind.ADMINISTRATION, result="ok")._replace(names=names)
    assert as_text(act) == (
        "User:ann from 10.0.0.1 on CLIENTS asked for CREATE_TOPICS of 'orders', 'new 3': ok"
    )
    assert as_text(event(why="no")) == "User:ann from 10.0.0.1 on CLIENTS is denied CREATE_TOPICS: no"
    assert json.loads(as_json(act)) == {
        "event": "administration",
        "principal": "User:ann",
        "client": "10.0.0.1",
        "listener": "CLIENTS",
        "action": "CREATE_TOPICS",
        "names": ["orders", "new 3"],
        "result": "ok",
    }
    assert json.loads(as_json(LeftOut(Kind.LOGIN, "User:ann", 3))) == {
        "event": "login",
        "left_out": 3,
        "seconds": 60,
        "principal": "User:ann",
    }


def test_an_act_that_failed_says_why() -> None:
    act = event(Kind.ADMINISTRATION, result="failed", why="no\nroom")
    assert as_text(act).endswith("asked for CREATE_TOPICS: failed: no\\nroom")
    assert json.loads(as_json(act))["why"] == "no\nroom"
    assert as_text(Gap(2, "no\nroom")).isprintable()


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_name_ends_a_line_or_reaches_a_terminal(form: str) -> None:
    names = Names.of([(EVIL,)])
    hostile = Event(Kind.REFUSAL, f"User:{EVIL}", EVIL, EVIL, EVIL, names, EVIL, EVIL, EVIL)
    for one in (*(hostile._replace(kind=kind) for kind in Kind), LeftOut(Kind.LOGIN, EVIL, 1)):
        text = line(one, form, 1_700_000_000_123)
        assert text.isprintable(), text
        assert "2023-11-14T22:13:20.123Z" in text
        if form == "json":
            assert json.loads(text)["principal"].endswith(EVIL)


def test_a_principal_with_spaces_is_quoted() -> None:
    said = as_text(event(principal="User:ann from 10.0.0.2 on ADMIN", why="no"))
    assert said.startswith("'User:ann from 10.0.0.2 on ADMIN' from 10.0.0.1 on CLIENTS ")


def test_many_and_long_names_are_cut() -> None:
    names = Names.of((f"{number}" * 30_000,) for number in range(NAMES_MAX + 7))
    assert (len(names.shown), names.more) == (NAMES_MAX, 7)
    assert len(as_text(event(why="y" * 30_000)._replace(names=names))) < 4_500
    assert str(Names.of([("a",)] * (NAMES_MAX + 1))).endswith("'a' and 1 more")


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        (None, "no answer"),
        ({}, "ok"),
        ({0: 3}, "ok"),
        ({36: 1}, "TOPIC_ALREADY_EXISTS"),
        ({36: 2, 0: 1}, "ok 1, TOPIC_ALREADY_EXISTS 2"),
        ({31_000: 1}, ErrorCode.UNKNOWN_SERVER_ERROR.name),
    ],
)
def test_results(errors: dict[int, int] | None, told: str) -> None:
    assert result_of(errors) == told
