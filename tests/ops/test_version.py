"""The version by the git tag, with and without git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mpbroker.config.version import VERSION
from ops.setup import version
from ops.setup.version import NoVersion


@pytest.mark.parametrize(
    ("described", "found"),
    [
        ("v1.2.3-0-gabcdef0", "1.2.3"),
        ("v1.2.3rc1-0-gabcdef0", "1.2.3rc1"),
        ("v1.2.3-4-gabcdef0", "1.2.4.dev4+gabcdef0"),
        ("v1.2.3rc1-4-gabcdef0", "1.2.3.dev4+gabcdef0"),
    ],
)
def test_versions_of_commits(described: str, found: str) -> None:
    assert version.of_description(described) == found


@pytest.mark.parametrize("described", ["v1.2-0-gabcdef0", "v1-stable-0-gabcdef0"])
def test_tags_that_are_no_versions(described: str) -> None:
    with pytest.raises(NoVersion, match=r"tags of versions are v1\.2\.3"):
        version.of_description(described)


def git(clone: Path, *words: str) -> None:
    settings = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *words], cwd=clone, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MPBROKER_VERSION", raising=False)
    (tmp_path / version.MODULE).parent.mkdir(parents=True)
    return tmp_path


@pytest.mark.process
def test_the_tag_says_it(clone: Path) -> None:
    git(clone, "init", "-q")
    git(clone, "commit", "-q", "--allow-empty", "-m", "one")
    before = version.find(clone)
    assert before.startswith(f"{version.FIRST}.dev1+g")
    git(clone, "tag", "v2.0.1")
    assert version.find(clone) == "2.0.1"
    git(clone, "commit", "-q", "--allow-empty", "-m", "two")
    assert version.find(clone).startswith("2.0.2.dev1+g")


def test_an_sdist_keeps_it(clone: Path) -> None:
    (clone / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: mpbroker\nVersion: 3.1.0\n\nText\n")
    assert version.find(clone) == "3.1.0"


def test_a_copy_of_a_built_checkout_keeps_it(clone: Path) -> None:
    version.write(clone, "4.0.0")
    written = (clone / version.MODULE).stat().st_mtime_ns
    assert version.find(clone) == "4.0.0"
    version.write(clone, "4.0.0")
    assert (clone / version.MODULE).stat().st_mtime_ns == written


def test_packagers_say_it(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPBROKER_VERSION", "5.0.0")
    assert version.find(clone) == "5.0.0"
    monkeypatch.setenv("MPBROKER_VERSION", "5.0-debian")
    with pytest.raises(NoVersion, match="-debian' is not a version as in PEP 440"):
        version.find(clone)


def test_without_anything_it_is_not_guessed(clone: Path) -> None:
    with pytest.raises(NoVersion, match="is neither a clone nor an sdist"):
        version.find(clone)


def test_the_checkout_has_one() -> None:
    assert version._PEP_440.fullmatch(VERSION)
