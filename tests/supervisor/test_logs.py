"""Lines of the log, whatever is quoted in them."""

import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mpbroker.supervisor import logs
from mpbroker.supervisor.logs import LogFormat

LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ ERROR \[supervisor\] (.*)\n")
FORGED = "x\n2026-01-01 00:00:00,000 ERROR [supervisor] forged\x1b[2J"
ESCAPED = r"x\n2026-01-01 00:00:00,000 ERROR [supervisor] forged\x1b[2J"

log = logging.getLogger("mpbroker")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Yield what the broker's logger writes."""
    before = log.handlers[:], log.level, log.propagate
    logs.configure()
    (handler,) = log.handlers
    assert isinstance(handler, logging.StreamHandler)
    to = io.StringIO()
    handler.setStream(to)
    yield to
    log.handlers[:], log.propagate = before[0], before[2]
    log.setLevel(before[1])


def test_a_record_is_one_line(written: io.StringIO) -> None:
    log.error("topic %s", FORGED)
    found = LINE.fullmatch(written.getvalue())
    assert found
    assert found[1] == f"topic {ESCAPED}"


def test_lines_of_a_traceback_are_no_lines_of_the_log(written: io.StringIO) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("failed")
    first, *others = written.getvalue().split("\n")
    assert LINE.fullmatch(first + "\n")
    assert all(not line or line.startswith("  ") for line in others)
    assert "\x1b" not in "".join(others)


def test_long_records_keep_both_ends(written: io.StringIO) -> None:
    log.error("begin %s end", "n" * logs.MESSAGE_LENGTH_MAX)
    line = written.getvalue()
    assert len(line) < logs.MESSAGE_LENGTH_MAX + 200
    assert "begin nnn" in line
    assert line.endswith("nnn end\n")


def test_escapes_make_no_line_longer() -> None:
    assert len(logs.written("\0" * 32_767)) < logs.MESSAGE_LENGTH_MAX + 200
    assert logs.written("a\0b") == "a\\x00b"


def lines_of(formatter: logging.Formatter, level: int = logging.ERROR, text: str = FORGED) -> list[str]:
    """Return the lines of a record with a traceback."""
    try:
        raise ValueError(text)
    except ValueError:
        record = logging.LogRecord("mpbroker.log", level, __file__, 1, "topic %s", (text,), sys.exc_info())
    record.process_name = "log 0"
    return formatter.format(record).split("\n")


def test_json_is_one_object_a_line_that_no_client_can_break() -> None:
    (line,) = lines_of(logs.formatter(LogFormat.JSON, to_journal=False), text=FORGED + "\udc80é\u2028")
    assert line.isascii()
    assert line.isprintable()
    told = json.loads(line)
    exception = told.pop("exception")
    assert exception.startswith("Traceback (most recent call last):\n")
    assert exception.endswith(f"ValueError: {FORGED}\udc80é\u2028")
    assert datetime.fromisoformat(told.pop("time")).tzinfo is UTC
    assert told == {
        "level": "ERROR",
        "process": "log 0",
        "pid": os.getpid(),
        "logger": "mpbroker.log",
        "message": f"topic {FORGED}\udc80é\u2028",
    }


@pytest.mark.parametrize(
    ("level", "priority"),
    [("DEBUG", 7), ("INFO", 6), ("WARNING", 4), ("ERROR", 3), ("CRITICAL", 2)],
)
def test_every_line_for_journald_has_its_priority_and_no_time(level: str, priority: int) -> None:
    number = getattr(logging, level)
    first, *others = lines_of(logs.formatter(LogFormat.TEXT, to_journal=True), number)
    assert first == f"<{priority}>{level} [log 0] topic {ESCAPED}"
    assert others
    assert all(line.startswith(f"<{priority}>  ") for line in others)
    (line,) = lines_of(logs.formatter(LogFormat.JSON, to_journal=True), number)
    assert json.loads(line.removeprefix(f"<{priority}>"))["level"] == level


def test_journald_reads_only_what_it_says(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        found = os.fstat(file.fileno())
        stream = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert logs.is_journal(stream, file.fileno())
        assert not logs.is_journal({}, file.fileno())
        assert not logs.is_journal({"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"}, file.fileno())
        assert not logs.is_journal({"JOURNAL_STREAM": "nonsense"}, file.fileno())
    assert not logs.is_journal(stream, found.st_ino + 100_000)


def test_formats_that_are_asked_for() -> None:
    assert logs.wanted_format({}) is LogFormat.TEXT
    assert logs.wanted_format({"MPBROKER_LOG_FORMAT": "json"}) is LogFormat.JSON
    assert logs.wanted_format({"MPBROKER_LOG_FORMAT": "json"}, "text") is LogFormat.TEXT
    with pytest.raises(ValueError, match="MPBROKER_LOG_FORMAT=xml: the format is one of text, json"):
        logs.wanted_format({"MPBROKER_LOG_FORMAT": "xml"})
    with pytest.raises(ValueError, match="--log-format=xml: the format is one of text, json"):
        logs.wanted_format({}, "xml")
