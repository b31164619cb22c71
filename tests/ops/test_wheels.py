"""Which Pythons get a wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ops.setup import wheels


def python(path: Path, version: str, *, is_good: str = "true") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    said = f'{{"version": [{version.replace(".", ", ")}], "is_good": {is_good}}}'
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


@pytest.mark.process
def test_one_of_each_version_is_found(home: Path) -> None:
    python(home / "bin/python3.98", "3.98.1")
    python(home / "bin/python3.98-config", "3.98.9")
    python(home / ".pyenv/versions/3.98.4/bin/python3", "3.98.4")
    python(home / ".pyenv/versions/3.10.1/bin/python3", "3.10.1")
    python(home / ".local/share/uv/python/cpython-3.99.0-linux/bin/python3", "3.99.0")
    python(home / "bin/python3.97", "3.97.0", is_good="false")
    python(home / "bin/python3.96", "no version")
    ours = sys.version_info[:2]
    assert wheels.interpreters(path=str(home / "bin")) == {
        ours: sys.executable,
        (3, 98): str(home / ".pyenv/versions/3.98.4/bin/python3"),
        (3, 99): str(home / ".local/share/uv/python/cpython-3.99.0-linux/bin/python3"),
    }


@pytest.mark.process
def test_ours_is_the_one_of_its_version(home: Path) -> None:
    minor = ".".join(map(str, sys.version_info[:2]))
    python(home / f"bin/python{minor}", f"{minor}.999")
    assert wheels.interpreters(path=str(home / "bin")) == {sys.version_info[:2]: sys.executable}
