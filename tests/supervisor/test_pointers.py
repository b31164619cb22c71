"""What a start says of the broker that was there before."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.pointer import POINTER_NAME, Pointer, write_pointer
from mpbroker.storage.names import CLEAN_SHUTDOWN
from mpbroker.supervisor.pointers import report_unclean_end
from mpbroker.testing import Broker


def test_an_unclean_end_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = BrokerConfig(log_dirs=(str(tmp_path),))

    def told() -> str:
        caplog.clear()
        report_unclean_end(config)
        return caplog.text

    assert told() == ""
    write_pointer(tmp_path, Pointer("/nowhere", 4711, 1))
    assert f"{tmp_path}: the last broker (supervisor 4711) did not end in order" in told()
    assert "they left the log open, and it is recovered" in told()
    (tmp_path / CLEAN_SHUTDOWN).touch()
    assert "those that outlived the supervisor closed the log cleanly" in told()
    (tmp_path / POINTER_NAME).write_text("{")
    assert f"{tmp_path / POINTER_NAME} cannot be read" in told()


def test_a_killed_broker_is_told_of_at_the_next_start() -> None:
    with Broker() as broker:
        pid = broker.pid
        broker.kill()
        broker.start()
        told = f"{broker.log_dir}: the last broker (supervisor {pid}) did not end in order"
        assert told in broker.logs()
        broker.restart()
        assert broker.logs().count("did not end in order") == 1
