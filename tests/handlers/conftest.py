from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from ops.bench.brokers import Mpbroker
from tests.support.handler_logs import TOPIC, Logged
from tests.support.handler_rig import Rig
from tests.support.handler_rig import rig as make_rig
from tests.support.real_brokers import served


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
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path)) as made:
        yield made
