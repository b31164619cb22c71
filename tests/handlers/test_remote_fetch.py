"""Fetch and ListOffsets of a partition whose sealed segments are in the object store alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.handler_logs import fetch
from tests.support.stored_segments import tiered_log
from tests.support.tier_end import TieredHandler, tiered_handler


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[TieredHandler]:
    with tiered_handler(tmp_path, tiered_log) as made:
        yield made


def test_a_fetch_from_the_first_offset_is_answered_from_a_window(tier: TieredHandler) -> None:
    found = tier.fetch(fetch(0, wait_ms=60_000))
    assert found.error_code == 0
    assert bytes(found.records) == tier.store.objects["t/0/00000000000000000000.log"]
