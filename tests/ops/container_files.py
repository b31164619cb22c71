"""The Containerfile's steps with the wheel in dist/, and a broker in what comes of them. Needs root.

`make test-dist` runs this. What the wheel requires comes from the registry.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.setup.wheels import interpreters
from tests.support.client_tools import eventually
from tests.support.empty_root import Container, Containerfile, EmptyRoot
from tests.support.polling import PATIENCE_S

ROOT = Path(__file__).parents[2]
PROGRAM = "/opt/mpbroker/bin/mpbroker"
TAG = re.compile(r"cp3(\d+)")

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and chroot need root"),
]


@pytest.fixture(scope="module")
def containerfile() -> Containerfile:
    return Containerfile.parse((ROOT / "Containerfile").read_text())


@pytest.fixture(scope="module")
def image(containerfile: Containerfile, tmp_path_factory: pytest.TempPathFactory) -> EmptyRoot:
    copied = containerfile.instructions[[name for name, _ in containerfile.instructions].index("COPY")][1]
    minor = TAG.search(copied)
    assert minor
    python = interpreters().get((3, int(minor[1])))
    if python is None:
        pytest.skip(f"there is no CPython 3.{minor[1]} here, which the image has")
    prefix = subprocess.run(
        [python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, check=True
    )
    directory = tmp_path_factory.mktemp("image") / "root"
    directory.mkdir()
    # Its user has to come through.
    for parent in directory.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    root = EmptyRoot(directory, Path(prefix.stdout.strip()))
    root.make()
    settings = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    root.build(containerfile, ROOT, settings)
    return root


@pytest.fixture
def container(image: EmptyRoot, containerfile: Containerfile, tmp_path: Path) -> Iterator[Container]:
    words = containerfile.words("ENTRYPOINT")
    running = image.start(words, containerfile.last("USER"), tmp_path / "output.log")
    yield running
    running.kill()


def test_a_broker_serves_in_it_and_stops_in_order(
    container: Container, containerfile: Containerfile, image: EmptyRoot
) -> None:
    health = containerfile.words("HEALTHCHECK")
    eventually(lambda: container.run(health).returncode == 0, "the health check is content")

    def client(*words: str, stdin: str = "") -> str:
        done = container.run([PROGRAM, *words], stdin)
        assert done.returncode == 0, done.stderr + container.output()
        return done.stdout

    client("topic", "create", "orders")
    client("produce", "orders", "-K", ":", stdin="alice:1\nbob:2\n")
    assert client("consume", "orders", "--from-beginning", "-e", "-f", "%k:%v\\n") == "alice:1\nbob:2\n"
    status = json.loads(client("ctl", "status", "--json", "--log-dirs", "/var/lib/mpbroker"))
    assert status["pid"] == 1
    assert status["runtime_dir"].startswith("/dev/shm/")
    assert {int(word) for word in user_ids(container.pid)} == {9092}
    assert container.stop(PATIENCE_S) == 0, container.output()
    assert "stopping: SIGTERM" in container.output()
    assert (image.path / "var/lib/mpbroker/.kafka_cleanshutdown").exists()


def user_ids(pid: int) -> list[str]:
    """Return the real, effective, saved and file system user of a process."""
    (line,) = re.findall(r"^Uid:\s+(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return str(line).split()


def test_without_a_tmpfs_it_says_so(container: Container, image: EmptyRoot) -> None:
    """And that the health check is discontent where nobody runs."""
    container.kill()
    done = image.run(["/bin/sh", "-c", f"{PROGRAM} ctl ready --log-dirs /var/lib/mpbroker || echo status $?"])
    assert "status 1" in done
    done = image.run(
        ["/bin/sh", "-c", f"MPBROKER_RUNTIME_DIR=/run/mpbroker {PROGRAM} serve --log-dirs /tmp/d || echo no"]
    )
    assert "tmpfs" in done
    assert done.endswith("no\n")


def test_nothing_is_left_that_runs_as_root(image: EmptyRoot) -> None:
    """No program of the image's own gives rights that its user lacks, and pip is gone."""
    assert [path for path in (image.path / "opt").rglob("*") if path.lstat().st_mode & 0o6000] == []
    assert list((image.path / "opt/mpbroker/lib").glob("python*/site-packages/pip")) == []
