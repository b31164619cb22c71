"""The file of the audit log: whole lines, rotated without a loss, and never a reason to stop."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.security.audit import Event, Kind
from mpbroker.security.audit_log import COMPLAINTS_EVERY_NS, AppendedFile, AuditLog, problem
from tests.support.forms import rounds
from tests.support.full_disk import files_take
from tests.support.polling import until

EVENT = Event(Kind.LOGIN, "User:ann", "::1", "TLS", "PLAIN")
WRITERS, LINES = 4, 2_000
KILLS, LINES_BEFORE_A_KILL = rounds(20), 500


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def config_of(path: Path | str, **more: str) -> BrokerConfig:
    return BrokerConfig(audit_log_file=str(path), **more)


def log_of(path: Path | str, **more: str) -> AuditLog:
    config = config_of(path, **more)
    return AuditLog(lambda: config)


def test_a_new_file_is_for_owner_and_group(path: Path) -> None:
    before = os.umask(0)
    try:
        assert problem(config_of(path)) is None
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o7777 == 0o640
    path.chmod(0o600)
    log_of(path).write(EVENT)
    assert path.stat().st_mode & 0o7777 == 0o600, "it is the operator's"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_has_its_time(path: Path, form: str) -> None:
    config = config_of(path, audit_log_format=form)
    AuditLog(lambda: config, wall_ns=lambda: 1_700_000_000_123_456_789).write(EVENT)
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


def test_after_a_rename_the_next_line_is_in_a_new_file(path: Path, tmp_path: Path) -> None:
    log = log_of(path)
    log.write(EVENT)
    moved = path.rename(tmp_path / "audit.log.1")
    log.write(EVENT)
    log.write(EVENT)
    assert [len(one.read_text().splitlines()) for one in (moved, path)] == [1, 2]
    assert path.stat().st_mode & 0o7777 == 0o640


def has_grown(path: Path, size: int) -> bool:
    return path.stat().st_size > size


def test_a_kill_costs_the_killed_process_its_last_line_at_most(path: Path) -> None:
    """Lines are longer than a page, in which the kernel looks for signals."""
    long = "x" * 10_000
    path.touch()
    for writer in range(KILLS):
        size = path.stat().st_size
        if (child := os.fork()) == 0:
            try:
                mine = AppendedFile(str(path))
                for number in range(LINES_BEFORE_A_KILL):
                    mine.append(f"{writer} {number} {long}")
                signal.pause()
            finally:
                os._exit(1)
        until(partial(has_grown, path, size), "it writes")
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    AppendedFile(str(path)).append("after the kills")
    *lines, last = [one for one in path.read_text().splitlines() if one]
    assert last == "after the kills"
    cut_off = [one for one in lines if not one.endswith(f" {long}")]
    assert len(cut_off) <= KILLS
    assert all(re.fullmatch(r"\d*( (\d+( x*)?)?)?", one) for one in cut_off)
    for writer in range(KILLS):
        numbers = [
            int(one.split(" ")[1]) for one in lines if one.startswith(f"{writer} ") and one not in cut_off
        ]
        assert numbers == list(range(len(numbers)))


def test_a_line_that_was_cut_off_does_not_run_into_the_next(path: Path) -> None:
    path.write_text("whole\nhal")
    AppendedFile(str(path)).append("next")
    assert path.read_text() == "whole\nhal\nnext\n"


def test_a_file_that_cannot_be_written_is_told_of_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    missing = path / "below" / "audit.log"
    log = log_of(missing)
    for _ in range(3):
        log.write(EVENT)
    complaint, *lines = caplog.messages
    assert f"audit.log.file={missing} cannot be written: No such file or directory." in complaint
    assert lines == ["audit: User:ann from ::1 on TLS has logged in: PLAIN"] * 3, "nothing is lost"
    caplog.clear()
    missing.parent.mkdir(parents=True)
    log.write(EVENT)
    log.write(EVENT)
    assert caplog.messages == [f"audit.log.file={missing} is written again: 3 line(s) are in this log alone"]
    gap, *told = (one[25:] for one in missing.read_text().splitlines())
    assert gap == (
        "3 line(s) of a process are missing here and are in the broker's log: No such file or directory"
    )
    assert told == ["User:ann from ::1 on TLS has logged in: PLAIN"] * 2


def test_a_file_that_comes_and_goes_is_told_of_once_a_minute(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mpbroker")
    now_ns = [0]
    log = AuditLog(lambda: config_of(path), now_ns=lambda: now_ns[0])
    for now_ns[0] in (0, 1, COMPLAINTS_EVERY_NS - 1, COMPLAINTS_EVERY_NS):
        path.mkdir()
        log.write(EVENT)
        path.rmdir()
        log.write(EVENT)
        path.unlink()
    assert len([one for one in caplog.messages if "cannot be written: Is a directory" in one]) == 2


def test_a_full_disk_cuts_a_line_and_costs_none(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    log = log_of(path, audit_log_format="json")
    log.write(EVENT)
    size = path.stat().st_size
    with files_take(2 * size + 20):
        for _ in range(4):
            log.write(EVENT)
    assert path.stat().st_size == 2 * size + 20, "the third line was cut"
    complaint, *told = caplog.messages
    assert f"audit.log.file={path} cannot be written: No space left on device" in complaint
    assert len(told) == 3
    assert all(json.loads(one.removeprefix("audit: "))["principal"] == "User:ann" for one in told)
    log.write(EVENT)
    first, second, cut, gap, last = path.read_text().splitlines()
    assert len({one[36:] for one in (first, second, last)}) == 1, "whole again"
    assert first.startswith(cut[:10])
    assert {"event": "missing lines", "left_out": 3}.items() <= json.loads(gap).items()


def test_a_device_is_no_file(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    assert "neither a regular file nor a socket" in str(problem(config_of("/dev/full")))
    log_of("/dev/full").write(EVENT)
    assert len(caplog.messages) == 2


@pytest.fixture(name="journal")
def _journal(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.setblocking(False)
        yield sock


def fields(journal: socket.socket) -> dict[str, str]:
    """Take a message, in the simple form of journald's protocol: a field in each line."""
    lines = journal.recv(1 << 20).decode().removesuffix("\n").split("\n")
    return {name: value for name, _, value in (one.partition("=") for one in lines)}


def test_a_socket_is_journalds(path: Path, journal: socket.socket) -> None:
    config = config_of(path)
    assert problem(config) is None
    log = AuditLog(lambda: config)
    log.write(EVENT)
    said = "User:ann from ::1 on TLS has logged in: PLAIN"
    assert fields(journal) == {"SYSLOG_IDENTIFIER": "mpbroker-audit", "PRIORITY": "6", "MESSAGE": said}
    structs.force_setattr(config, "audit_log_format", "json")
    log.write(EVENT._replace(kind=Kind.REFUSED_LOGIN, why="x\nPRIORITY=1"))
    refused = fields(journal)
    assert refused["PRIORITY"] == "4"
    assert json.loads(refused["MESSAGE"])["why"] == "x\nPRIORITY=1"


def test_a_journal_that_is_jammed_holds_up_nobody(
    path: Path, journal: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    log = log_of(path)
    sent = 0
    while not caplog.messages:
        log.write(EVENT)
        sent += 1
    assert "cannot be written: Resource temporarily unavailable" in caplog.messages[0]
    for _ in range(sent - 1):
        assert "has logged in" in fields(journal)["MESSAGE"]
    log.write(EVENT)
    assert fields(journal)["MESSAGE"].startswith("1 line(s) of a process are missing here")
    assert "has logged in" in fields(journal)["MESSAGE"]


def test_a_journal_that_ends_is_found_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mpbroker")
    log = log_of(path)
    for _ in range(2):
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(str(path))
            log.write(EVENT)
            assert sock.recv(1 << 16)
    assert caplog.messages == []
    log.write(EVENT)
    assert len([one for one in caplog.messages if "cannot be written: Connection refused" in one]) == 1


def test_a_pipe_is_refused_and_nobody_waits_for_its_reader(path: Path) -> None:
    os.mkfifo(path)
    assert "neither a regular file nor a socket" in str(problem(config_of(path)))


def test_another_file_from_now_on(path: Path, tmp_path: Path) -> None:
    """As a reload does it: the one object changes."""
    config = config_of(path)
    log = AuditLog(lambda: config)
    log.write(EVENT)
    structs.force_setattr(config, "audit_log_file", str(tmp_path / "other.log"))
    structs.force_setattr(config, "audit_log_format", "json")
    log.write(EVENT)
    assert len(path.read_text().splitlines()) == 1
    assert json.loads((tmp_path / "other.log").read_text())["principal"] == "User:ann"


def test_without_a_file_it_is_part_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    AuditLog(lambda: BrokerConfig(audit_log_format="json")).write(EVENT)
    (message,) = caplog.messages
    assert json.loads(message.removeprefix("audit: "))["listener"] == "TLS"
    assert problem(BrokerConfig()) is None
