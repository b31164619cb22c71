"""How far a standby is behind, as it tells its face."""

from __future__ import annotations

from pathlib import Path

from mpbroker.ipc.standby_lag import StandbyLag, read_lag, write_lag
from shm.clock import boot_ns


def test_the_age_grows_from_when_the_mirror_had_all(tmp_path: Path) -> None:
    assert read_lag(tmp_path) is None
    write_lag(tmp_path, StandbyLag(0, 2, 10, 0))
    never = read_lag(tmp_path)
    assert never is not None
    assert never.behind_s == -1
    write_lag(tmp_path, StandbyLag(boot_ns() - 5 * 10**9, 0, 0, 7))
    found = read_lag(tmp_path)
    assert found is not None
    assert found.behind_s >= 5
