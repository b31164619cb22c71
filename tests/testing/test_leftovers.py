"""Directories of brokers whose owner has gone, and those that are somebody's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpbroker.testing.leftovers import has_lost_its_owner, new_name, sweep

# More than there can be (proc(5), pid_max).
NOBODY = (1 << 22) + 1


def test_only_what_has_lost_its_owner_goes(tmp_path: Path) -> None:
    prefix, namespace, pid, start, word = new_name().rsplit("-", 4)
    gone = [
        f"{prefix}-{namespace}-{NOBODY}-{start}-{word}",
        f"{prefix}-{namespace}-{pid}-{int(start) + 1}-{word}",
    ]
    stay = [
        new_name(),
        f"{prefix}-{int(namespace) + 1}-{NOBODY}-{start}-{word}",
        f"{prefix}-{word}",
        "somebody-else",
    ]
    for name in (*gone, *stay):
        (tmp_path / name / "data").mkdir(parents=True)
    sweep([tmp_path])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(stay)


def test_what_is_another_users_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, namespace, _, start, word = new_name().rsplit("-", 4)
    path = tmp_path / f"{prefix}-{namespace}-{NOBODY}-{start}-{word}"
    path.mkdir()
    assert has_lost_its_owner(path.name)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    sweep([tmp_path])
    assert path.is_dir()


def test_names_are_unlike() -> None:
    assert new_name() != new_name()
    assert not has_lost_its_owner(new_name())
