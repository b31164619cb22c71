"""Whoever waits for a recovery is told how far it is: on a terminal, in a log, in a status."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from dataclasses import replace

import msgspec
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.progress import Progress, read_progress, write_progress
from mpbroker.ipc.topology import SharedMemory
from mpbroker.supervisor import progress

CONFIG = msgspec.structs.replace(BrokerConfig(), log_dirs=("/one", "/two"))
GOING = Progress(1, True, 1000, 250, 4 << 30, 1 << 30, 10.0)


def test_a_row_is_read_as_it_was_written(memory: SharedMemory) -> None:
    words = memory.words("recovery")
    write_progress(words, 0, GOING)
    found = read_progress(words, 1, 1)
    assert found == replace(GOING, passed_s=found.passed_s)
    assert (found.partitions_left, found.bytes_left) == (750, 3 << 30)
    assert found.seconds_left == pytest.approx(30, abs=1)
    assert not read_progress(words, 1, 0).goes_on


def test_time_left_goes_by_partitions_without_bytes_and_is_unknown_at_first() -> None:
    assert Progress(0, True, 100, 25, 0, 0, 1.0).seconds_left == pytest.approx(3)
    assert Progress(0, True, 100, 0, 0, 0, 1.0).seconds_left is None


def test_a_status_has_the_directories_that_are_at_it(memory: SharedMemory) -> None:
    write_progress(memory.words("recovery"), 0, GOING)
    (row,) = progress.rows(CONFIG, memory)
    assert row["log_dir"] == "/two"
    assert (row["partitions_done"], row["partitions_left"]) == (250, 750)
    assert (row["bytes_done"], row["bytes_left"]) == (1 << 30, 3 << 30)
    assert row["seconds_left"] == pytest.approx(30, abs=1)


def test_a_log_gets_a_line_now_and_then(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reporter = progress.Reporter(CONFIG, memory)
    write_progress(memory.words("recovery"), 0, GOING)
    said = []
    for _ in range(80):
        reporter.poll()
        said.append(len(caplog.records))
        now[0] += 0.1
    reporter.end()
    assert said[5] == 0
    assert said[-1] == 2
    assert "recovering /two: 250 of 1000 partitions, 1024 of 4096 MiB checked" in caplog.text
    assert reporter.text.startswith("Recovering /two: 250 of 1000 partitions"), (
        "the service manager is told, too"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_that_needs_no_thread(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor forks: it must have none."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "SILENT_S", 0)
    monkeypatch.setattr(progress, "DRAW_EVERY_S", 0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    write_progress(memory.words("recovery"), 0, GOING)
    threads = threading.active_count()
    reporter = progress.Reporter(CONFIG, memory)
    reporter.poll()
    reporter.poll()
    assert threading.active_count() == threads
    reporter.end()
    text = terminal.getvalue()
    assert "recovering /two" in text
    assert "250 of 1000 partitions" in text


def test_a_terminal_is_left_alone_by_a_start_without_recovery(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "SILENT_S", 0)
    reporter = progress.Reporter(CONFIG, memory)
    reporter.poll()
    reporter.end()
    assert terminal.getvalue() == ""
