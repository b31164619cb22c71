from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.fetch import remote_windows
from mpbroker.remote.tier import download_jobs, window_reads, windows
from ops.bench.brokers import Mpbroker
from tests.support.handler_logs import TOPIC, Logged
from tests.support.handler_rig import Rig
from tests.support.handler_rig import rig as make_rig
from tests.support.real_brokers import served
from tests.support.stored_segments import tiered_log
from tests.support.tier_end import TieredHandler, tiered_handler


@pytest.fixture
def rig() -> Iterator[Rig]:
    with make_rig() as made:
        yield made


@pytest.fixture
def ready(rig: Rig, request: pytest.FixtureRequest) -> Rig:
    """Make a handler that knows the topics of the module's `READY`."""
    rig.publish(*request.module.READY)
    return rig


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Logged]:
    """A partition without records."""
    with make_rig(BrokerConfig(log_dirs=(str(tmp_path),))) as made:
        made.publish(TOPIC)
        yield Logged(tmp_path, made)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let windows have a few batches, and failures be over soon."""
    monkeypatch.setattr(windows, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(window_reads, "REQUEST_BYTES", 1000)
    monkeypatch.setattr(download_jobs, "BACKOFF_S", 0.001)
    monkeypatch.setattr(remote_windows, "PAUSE_MS", 200)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[TieredHandler]:
    """A handler with a tier, which has all sealed segments."""
    with tiered_handler(tmp_path, tiered_log) as made:
        yield made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path)) as made:
        yield made
