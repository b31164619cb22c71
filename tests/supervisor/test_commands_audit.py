"""Commands of `mpbroker ctl` that change something are in the audit log; those that look are not."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.security.audit import as_text
from mpbroker.supervisor.commands import CommandsAudit, described
from mpbroker.supervisor.control import Command, Peer

ME = Peer(123, os.getuid())
NOBODY_KNOWN = 4_000_000_000
NAME = pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.parametrize(
    ("command", "answer", "told"),
    [
        (Command("reload"), {"changed": ["x"]}, "ctl reload: ok"),
        (Command("reload"), {"error": "no\nfile"}, "ctl reload: failed: no\\nfile"),
        (Command("resize", handlers=3, processors=2), {}, "ctl resize of 'handlers 3', 'processors 2': ok"),
        (Command("listener-add", listener="A://h:1"), {}, "ctl listener-add of 'A://h:1': ok"),
        (Command("request-log", on=False), {}, "ctl request-log of 'off': ok"),
        (Command("log-level", logger="root", level="DEBUG"), {}, "ctl log-level of 'root DEBUG': ok"),
        (Command("log-level", logger="root", level=""), {}, "ctl log-level of 'root as at start': ok"),
        (Command("scrub", on=True), {}, "ctl scrub of 'on': ok"),
    ],
)
def test_lines_of_commands(command: Command, answer: dict[str, str], told: str) -> None:
    said = as_text(described(ME, command, answer))
    assert said == f"Unix:{NAME} from process 123 on control.sock asked for {told}"


def test_a_user_without_a_name_has_its_number() -> None:
    event = described(ME._replace(user_id=NOBODY_KNOWN), Command("reload"), {})
    assert event.principal == f"Unix:{NOBODY_KNOWN}"


def test_whoever_only_looks_is_not_told(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = CommandsAudit(lambda: BrokerConfig(audit_log_file=str(path)))
    for name in ("status", "listeners", "request-log", "log-level", "scrub"):
        audit.record(ME, Command(name), {})
    assert not path.exists()


def test_no_child_of_the_supervisor_gets_the_file(tmp_path: Path) -> None:
    """Its space would not be free when it is rotated and deleted."""
    config = BrokerConfig(audit_log_file=str(tmp_path / "audit.log"))
    audit = CommandsAudit(lambda: config)
    before = len(list(Path("/proc/self/fd").iterdir()))
    audit.record(ME, Command("reload"), {})
    config = structs.replace(config, audit_log_file=str(tmp_path / "other.log"))
    audit.record(ME, Command("reload"), {})
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert {one.name: one.read_text().count("ctl reload: ok") for one in tmp_path.iterdir()} == {
        "audit.log": 1,
        "other.log": 1,
    }
