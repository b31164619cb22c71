"""Faults as they lie in shared memory."""

from __future__ import annotations

import pytest

from mpbroker.ipc import faults, settings
from mpbroker.ipc.faults import Fault
from mpbroker.ipc.topology import SharedMemory


def test_a_broker_has_none_until_somebody_asks(memory: SharedMemory) -> None:
    assert faults.read(memory.private.block("faults")) == []


def test_the_last_ones_count(memory: SharedMemory) -> None:
    block = memory.private.block("faults")
    first = [Fault("/a", 0, delay_ms=5, client_id="c", times=2), Fault("/b", 1, closes=True)]
    settings.write(block, faults.encode(first))
    assert faults.read(block) == first
    settings.write(block, faults.encode([]))
    assert faults.read(block) == []


def test_more_than_fits_is_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {faults.BYTES - 8} fit"):
        faults.encode([Fault("x" * faults.BYTES, 0)])
