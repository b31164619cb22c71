"""The command that installs an extra is of the environment that runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpbroker.config.extras import pip_install


@pytest.mark.parametrize(
    ("has_own", "found", "pip"),
    [
        (True, "own", "pip"),
        (True, "/usr/bin/pip", "{bin}/pip"),
        (True, None, "{bin}/pip"),
        (False, "/usr/bin/pip", "{bin}/python -m pip"),
    ],
)
def test_it_names_this_environment_unless_a_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own: bool, found: str | None, pip: str
) -> None:
    if has_own:
        (tmp_path / "pip").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    which = str(tmp_path / "pip") if found == "own" else found
    monkeypatch.setattr("shutil.which", lambda _name: which)
    assert pip_install("top") == f"{pip.format(bin=tmp_path)} install 'mpbroker-server[top]'"
