"""A broker with records and a group, for `mpbroker top` to look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpbroker.testing import Broker
from tests.support.filled_broker import fill


@pytest.fixture
def filled_broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker of one's own with what `fill` leaves in it."""
    monkeypatch.delenv("MPBROKER_RUNTIME_DIR", raising=False)
    with Broker() as broker:
        fill(broker)
        yield broker
