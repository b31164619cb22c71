"""The file of the audit log: whole lines, rotated without a loss, and never a reason to stop."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import pytest
from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.security import audit_log
from mpbroker.security.audit import Event, Kind
from mpbroker.security.audit_log import COMPLAINTS_EVERY_NS, AppendedFile, AuditLog, problem

EVENT = Event(Kind.LOGIN, "User:ann", "::1", "TLS", "PLAIN")
WRITERS, LINES = 4, 2_000


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def config_of(path: Path | str, **more: str) -> BrokerConfig:
    return BrokerConfig(audit_log_file=str(path), **more)


def test_a_new_file_is_for_owner_and_group(path: Path) -> None:
    before = os.umask(0)
    try:
        assert problem(config_of(path)) is None
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == 0o640
    path.chmod(0o600)
    AuditLog(config_of(path)).write(EVENT)
    assert path.stat().st_mode & 0o7777 == 0o600, "it is the operator's"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_has_its_time(path: Path, form: str) -> None:
    AuditLog(config_of(path, audit_log_format=form), wall_ns=lambda: 1_700_000_000_123_456_789).write(EVENT)
    said = path.read_text()
    if form == "json":
        assert json.loads(said)["time"] == "2023-11-14T22:13:20.123Z"
        assert json.loads(said)["event"] == "login"
    else:
        assert said == "2023-11-14T22:13:20.123Z User:ann from ::1 on TLS has logged in: PLAIN\n"


def test_lines_of_several_processes_are_whole_and_survive_rotation(path: Path, tmp_path: Path) -> None:
    children = []
    for writer in range(WRITERS):
        if (child := os.fork()) == 0:
            status = 1
            try:
                mine = AppendedFile(str(path))
                for number in range(LINES):
                    mine.append(f"{writer} {number} " + "x" * (number % 300))
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    left, rotated = set(children), 0
    while left:
        if path.exists():
            path.rename(tmp_path / f"audit.log.{rotated}")
            rotated += 1
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended:
            assert status == 0
            left.discard(ended)
    # A reader of a line that is being written makes an empty one.
    lines = [one for each in tmp_path.iterdir() for one in each.read_text().splitlines() if one]
    assert rotated > 1
    assert len(lines) == WRITERS * LINES
    found = {re.fullmatch(r"(\d+) (\d+) (x*)", one) for one in lines}
    assert {(int(one[1]), int(one[2])) for one in found if one and len(one[3]) == int(one[2]) % 300} == {
        (writer, number) for writer in range(WRITERS) for number in range(LINES)
    }


def test_a_line_that_was_cut_off_does_not_run_into_the_next(path: Path) -> None:
    path.write_text("whole\nhal")
    AppendedFile(str(path)).append("next")
    assert path.read_text() == "whole\nhal\nnext\n"


def test_a_file_that_cannot_be_written_is_told_of_now_and_then(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    now_ns = [0]
    missing = path / "below" / "audit.log"
    log = AuditLog(config_of(missing), now_ns=lambda: now_ns[0])
    log.write(EVENT)
    log.write(EVENT)
    complaint, *lines = caplog.messages
    assert f"audit.log.file={missing} cannot be written: No such file or directory." in complaint
    assert lines == ["audit: User:ann from ::1 on TLS has logged in: PLAIN"] * 2, "nothing is lost"
    now_ns[0] = COMPLAINTS_EVERY_NS
    log.write(EVENT)
    assert len(caplog.messages) == 5
    caplog.clear()
    missing.parent.mkdir(parents=True)
    log.write(EVENT)
    assert caplog.messages == []
    assert len(missing.read_text().splitlines()) == 1


def test_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    assert "no regular file" in str(problem(config_of("/dev/full")))
    AuditLog(config_of("/dev/full")).write(EVENT)
    assert len(caplog.messages) == 2


def test_a_disk_that_fills_up_within_a_line(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    log = AuditLog(config_of(path))
    log.write(EVENT)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(audit_log.os, "write", lambda fd, data: write(fd, data[:20]))
        log.write(EVENT)
    assert [one.partition(":")[0] for one in caplog.messages] == [
        f"audit.log.file={path} cannot be written",
        "audit",
    ]
    log.write(EVENT)
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert lines[0][24:] == lines[2][24:], "whole again"


def test_a_pipe_is_refused_and_nobody_waits_for_its_reader(path: Path) -> None:
    os.mkfifo(path)
    assert "no regular file" in str(problem(config_of(path)))


def test_another_file_from_now_on(path: Path, tmp_path: Path) -> None:
    """As a reload does it: the one object changes."""
    config = config_of(path)
    log = AuditLog(config)
    log.write(EVENT)
    structs.force_setattr(config, "audit_log_file", str(tmp_path / "other.log"))
    structs.force_setattr(config, "audit_log_format", "json")
    log.write(EVENT)
    assert len(path.read_text().splitlines()) == 1
    assert json.loads((tmp_path / "other.log").read_text())["principal"] == "User:ann"


def test_without_a_file_it_is_part_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    AuditLog(BrokerConfig(audit_log_format="json")).write(EVENT)
    (message,) = caplog.messages
    assert json.loads(message.removeprefix("audit: "))["listener"] == "TLS"
    assert problem(BrokerConfig()) is None
