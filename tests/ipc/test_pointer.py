"""The lock in a log directory shows which broker has it."""

from __future__ import annotations

import fcntl
from pathlib import Path

from mpbroker.ipc.pointer import LOCK, has_broker, is_locked


def test_trying_a_lock_leaves_it(tmp_path: Path) -> None:
    lock = tmp_path / LOCK
    assert not is_locked(lock)
    lock.touch()
    assert not is_locked(lock)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert is_locked(lock)
        assert has_broker(tmp_path)
    assert not is_locked(lock)
    assert not has_broker(tmp_path)
