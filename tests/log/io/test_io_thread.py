"""The log process's io_thread: what becomes of a job that fails."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from mpbroker.log.io.io_thread import IoThread
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_topic_id
from mpbroker.storage.names import PARTITION_METADATA
from tests.support.polling import PATIENCE_S, until


def test_a_mistake_in_a_job_reaches_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    woken = threading.Event()
    io_thread = IoThread(woken.set)

    def mistaken() -> None:
        raise ValueError("a mistake")

    with caplog.at_level(logging.ERROR, "mpbroker"):
        io_thread.submit(mistaken, 0)
        assert woken.wait(PATIENCE_S)
    assert "ValueError: a mistake" in caplog.text
    assert not io_thread.is_idle
    with pytest.raises(RuntimeError, match="log helper") as raised:
        io_thread.failures()
    assert isinstance(raised.value.__cause__, ValueError)
    io_thread.close()


def test_jobs_that_jobs_give_are_waited_for_in_their_turn() -> None:
    io_thread, ran = IoThread(), []

    def more(left: int) -> None:
        ran.append(left)
        if left:
            io_thread.submit(lambda: more(left - 1), 0)

    for _ in range(200):
        io_thread.submit(lambda: more(20), 0)
        io_thread.submit(lambda: ran.append(-1), 0)
    given = ran.count
    for _ in io_thread.catching_up():
        pass
    assert given(-1) == 200
    until(lambda: io_thread.is_idle, "the I/O thread is idle")
    assert len(ran) == 200 * 22
    io_thread.close()


def test_metadata_that_is_no_text_is_said_to_be_corrupt(tmp_path: Path) -> None:
    (tmp_path / PARTITION_METADATA).write_bytes(b"version: 0\ntopic_id: \xff\xfe")
    with pytest.raises(CheckpointCorrupt, match="not text"):
        read_topic_id(tmp_path)
