"""Roots of Debian's packages: kept while they are what is wanted, and clear errors. Nothing is fetched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ops.setup import cross, debian_root


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty directory the only one that programs are looked for in."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_what_is_missing_is_named_with_its_package(nothing: Path) -> None:
    (nothing / "bin/there").touch(0o755)
    with pytest.raises(debian_root.MissingTools) as raised:
        debian_root.require({"there": "a", "one": "b", "other": "b"})
    assert str(raised.value) == "there is no one, no other here: apt-get install b"


def test_a_root_is_kept_until_other_packages_are_wanted(nothing: Path) -> None:
    (nothing / "root").mkdir()
    (nothing / "packages").write_text("arm64\nbookworm\nbash")
    assert debian_root.make(nothing, ["bash"]) == nothing / "root"
    for packages, release in (["dash"], "bookworm"), (["bash"], "trixie"):
        with pytest.raises(debian_root.MissingTools, match="apt-get install apt dpkg tar"):
            debian_root.make(nothing, packages, release=release)
    assert (nothing / "root").exists()


def test_without_a_cross_compiler_it_says_what_to_install(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cross", str(nothing / "mpbroker.tar.gz")])
    monkeypatch.setattr(cross, "PYTHON", sys.version_info[:2])
    with pytest.raises(SystemExit, match="apt-get install gcc-aarch64-linux-gnu"):
        cross.main()


def test_it_has_to_run_on_the_python_that_the_wheel_is_for(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cross", str(nothing / "mpbroker.tar.gz")])
    monkeypatch.setattr(cross, "PYTHON", (3, 99))
    with pytest.raises(SystemExit, match=r"PYTHON=python3\.99 make setup"):
        cross.main()
