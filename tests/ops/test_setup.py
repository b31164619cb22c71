"""What `make setup` takes of a machine: its Go for the tests of franz-go, its JDK for the JVM reader."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import client_tools

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SETUP = Path("ops/setup/setup.sh")
GO_MOD = Path("tests/real_clients/franz/go.mod")


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def go(path: Path, version: str) -> None:
    script(path, f"echo go version go{version} linux/amd64")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """With all that setup looks for but Go, and a uv that keeps what it was told; nobody is root."""
    clone = tmp_path / "clone"
    for name in (SETUP, GO_MOD):
        (clone / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, clone / name)
    (clone / GO_MOD).write_text("module m\n\ngo 1.26.0\n")
    script(clone / "bin/cc", "while read -r _; do :; done")
    for program in ("bin/kcat", "bin/mvn", ".venv/bin/python"):
        script(clone / program, "exit 0")
    script(clone / "bin/java", "echo 'openjdk version \"17.0.2\"' >&2")
    script(clone / "bin/javac", "echo javac 17.0.2")
    script(clone / "bin/id", "echo 1000")
    script(clone / ".venv/bin/uv", f'echo "$@" >> {clone}/uv.told')
    return clone


def set_up(clone: Path) -> tuple[str, str]:
    """-> what uv was told, what was said."""
    for name in ("bash", "sed", "sort", "head", "uname", "dirname"):
        (clone / "bin" / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [str(clone / "bin/bash"), str(clone / SETUP)],
        env={"PATH": str(clone / "bin"), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (clone / "uv.told").read_text(), done.stderr


@pytest.mark.parametrize("version", ["1.26.0", "1.26.8", "1.27rc1", "1.100.0", "2.0"])
def test_a_go_that_is_new_enough_is_taken(clone: Path, version: str) -> None:
    go(clone / "bin/go", version)
    told, said = set_up(clone)
    assert "--no-group go" in told
    assert "Go" not in said


@pytest.mark.parametrize("version", ["", "1.19.8", "1.25.9"])
def test_one_that_is_too_old_counts_as_none(clone: Path, version: str) -> None:
    """As Debian 12 has it. The lock file's comes into .venv then."""
    if version:
        go(clone / "bin/go", version)
    go(clone / ".venv/bin/go", "1.27.3")
    told, said = set_up(clone)
    assert "sync" in told
    assert "--all-groups" in told
    assert "--no-group" not in told
    assert "Go" not in said


def test_a_machine_for_which_there_is_none_is_told_what_fails(clone: Path) -> None:
    go(clone / "bin/go", "1.19.8")
    _, said = set_up(clone)
    assert re.search(r"no Go 1\.26\.0 or newer here, .* the tests of franz-go will fail", said)


def test_the_tests_take_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, venv = tmp_path / "system/go", tmp_path / "venv/go"
    monkeypatch.setenv("PATH", os.pathsep.join([str(system.parent), "/usr/bin", "/bin"]))
    monkeypatch.setattr(sys, "executable", str(venv.with_name("python")))
    go(system, "1.19.8")
    go(venv, "1.27.3")
    assert client_tools.go() == str(venv)
    go(system, "1.26.8")
    assert client_tools.go() == str(system)
    go(system, "1.19.8")
    venv.unlink()
    with pytest.raises(pytest.fail.Exception, match=r"make setup puts one into \.venv"):
        client_tools.go()


@pytest.mark.parametrize("version", ["", "11.0.20", "1.8.0_392"])
def test_without_a_java_compiler_it_says_so_and_goes_on(clone: Path, version: str) -> None:
    if version:
        script(clone / "bin/javac", f"echo javac {version} >&2")
    else:
        (clone / "bin/javac").unlink()
    told, said = set_up(clone)
    assert "sync" in told
    assert re.search(r"missing: .*jdk-headless", said)
    assert "going on without them: what needs them (Spark, its JVM reader," in said
