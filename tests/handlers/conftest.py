from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Mpbroker
from tests.support.handler_rig import Rig
from tests.support.handler_rig import rig as make_rig


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
def broker(tmp_path: Path) -> Iterator[Mpbroker]:
    made = Mpbroker(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.kill()
