"""A user's first minutes: `make run` in a clone, and a wheel where no compiler is. `.ci/run` runs this.

Home and all caches are empty: this shows steps that work only where somebody has been before. The clone has
what is committed. Set-up fetches packages from the registry and compiles, which takes some minutes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.bench.brokers import HOST, free_port
from tests.ops.test_dist import look_for_pages, look_into, try_out
from tests.support.client_tools import program
from tests.support.distributions import (
    ROOT,
    build_sdist,
    build_wheel,
    install,
    outside,
    run,
    without_compiler,
)
from tests.support.polling import PATIENCE_S, until
from tests.support.programs import Piped, ran

pytestmark = [pytest.mark.process, pytest.mark.timeout(3600)]

# Where programs keep what they fetched or built; without these it lies below the home directory.
CACHES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "PIP_CACHE_DIR", "UV_CACHE_DIR", "CCACHE_DIR")
CACHES_OF_GO = ("GOPATH", "GOCACHE", "GOMODCACHE", "GOENV")
READY = "] serving on PLAINTEXT://"
# The interpreter itself: what a version manager puts on the PATH may need the home directory.
PYTHON = str(Path(sys.base_exec_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")


def of_a_newcomer(home: Path) -> dict[str, str]:
    """Return the variables of somebody whose home directory is empty."""
    home.mkdir()
    kept = {name: value for name, value in outside().items() if name not in (*CACHES, *CACHES_OF_GO)}
    # What MAKEFLAGS says is for the make that runs this.
    kept.pop("MAKEFLAGS", None)
    return {**kept, "HOME": str(home), "PYTHON": PYTHON}


@dataclass
class First:
    """A broker as `make run` starts it."""

    clone: Path
    environment: dict[str, str]
    port: int
    http: int
    said: list[str]

    def cli(self, *words: str, stdin: str = "") -> str:
        command = [self.clone / ".venv/bin/mpbroker", *words, "-b", f"{HOST}:{self.port}"]
        done = ran(command, env=self.environment, input=stdin)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}\n{''.join(self.said)}"
        return done.stdout


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    directory = tmp_path_factory.mktemp("first")
    # Optimising is half of what compiling takes; what `make setup` has optimised, all other tests run.
    environment = {**of_a_newcomer(directory / "home"), "CFLAGS": "-O0"}
    clone = directory / "clone"
    run(["git", "clone", "--quiet", str(ROOT), str(clone)], directory, environment)
    port, http = free_port(), free_port()
    command = ["make", "run", f"LISTENERS=PLAINTEXT://{HOST}:{port}", f"HTTP={HOST}:{http}"]
    process = Piped(
        command,
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Of its own, as of a terminal: Ctrl-C goes to all of them.
        start_new_session=True,
    )
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if READY in line:
                break
        assert READY in said[-1], f"make run ended with {process.wait()}:\n{''.join(said)}"
        yield First(clone, environment, port, http, said)
        os.killpg(process.pid, signal.SIGINT)
        left, _ = process.communicate(timeout=PATIENCE_S)
        assert "stopped with status 0" in left, left
        until(lambda: not _is_there(process.pid), "all processes of make run have ended")
    finally:
        if _is_there(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_records_go_in_and_out_with_the_command(first: First) -> None:
    assert "created topic first with 1 partition(s)" in first.cli("topic", "create", "first")
    first.cli("produce", "first", "-K", ":", stdin="alice:1\nbob:2\n")
    assert first.cli("consume", "first", "--from-beginning", "-e", "-f", "%k:%v\\n") == "alice:1\nbob:2\n"


def test_records_go_in_and_out_with_kcat(first: First) -> None:
    kcat = [program("kcat"), "-b", f"{HOST}:{first.port}", "-t", "by-kcat"]
    ran([*kcat, "-P"], input="one\ntwo\n", check=True)
    assert ran([*kcat, "-C", "-e", "-q"], check=True).stdout == "one\ntwo\n"


def test_the_console_and_the_metrics_are_there(first: First) -> None:
    for page, text in (("/", b"<html"), ("/metrics", b"kafka_")):
        with urllib.request.urlopen(f"http://{HOST}:{first.http}{page}", timeout=PATIENCE_S) as response:
            assert text in response.read(), page


def test_a_wheel_needs_no_compiler(tmp_path: Path) -> None:
    """What it requires comes from the registry."""
    environment = of_a_newcomer(tmp_path / "home")
    wheel = build_wheel(build_sdist(tmp_path), tmp_path)
    look_into(wheel)
    look_for_pages(wheel, tmp_path / "files")
    environment["PATH"] = without_compiler(tmp_path)
    try_out(install(wheel, PYTHON, tmp_path, environment), tmp_path / "broker")
