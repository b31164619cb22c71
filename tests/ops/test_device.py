"""The measurement of a bare device."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench import device


def test_rounds_are_written_and_nothing_is_left(tmp_path: Path) -> None:
    found = device.measure(tmp_path, 4096, 0.01)
    assert found.rounds_per_s > 0
    assert 0 < found.p50_us <= found.p99_us
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 100, 513, device.FILE_BYTES + 512])
def test_sizes_that_the_journal_never_writes_are_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match="multiples of 512"):
        device.measure(tmp_path, size, 0.01)


def test_a_round_is_whole_sectors_with_its_record() -> None:
    assert device.whole_sectors(1) == 512
    assert device.whole_sectors(512 - device.RECORD_BYTES) == 512
    assert device.whole_sectors(513 - device.RECORD_BYTES) == 1024
