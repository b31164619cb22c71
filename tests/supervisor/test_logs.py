"""Lines of the log, whatever is quoted in them."""

import io
import logging
import re
from collections.abc import Iterator

import pytest

from mpbroker.supervisor import logs

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
