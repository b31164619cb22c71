"""The public region of a broker that cannot be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.ipc.control_client import ControlError
from mpbroker.observe.live import attach


def test_a_region_that_cannot_be_attached_says_why(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match=r"cannot be read \(No such file or directory\): no broker runs"):
        attach(tmp_path / "none")
    other = tmp_path / "other"
    other.write_bytes(bytes(4096))
    with pytest.raises(ControlError, match=str(other)):
        attach(other)
