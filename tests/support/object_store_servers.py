"""versitygw, a server of S3 that keeps buckets as directories: built once by Go, for real requests."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ops.bench.brokers import HOST, free_port
from tests.support import client_tools
from tests.support.polling import PATIENCE_S, until

VERSION = "v1.8.0"
PROGRAM = client_tools.FRANZ.parents[1] / "versitygw" / f"versitygw-{VERSION}"
BUCKET = "bucket"
ACCESS_KEY, SECRET_KEY = "test", "testtest"


@cache
def versitygw_program() -> str:
    """The server: built by `make setup`, or here, once for all that run side by side."""
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    with open(PROGRAM.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not PROGRAM.exists():
            source = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
            client_tools.run(
                ["env", f"GOBIN={PROGRAM.parent}", client_tools.go(), "install", source], cwd=PROGRAM.parent
            )
            (PROGRAM.parent / "versitygw").rename(PROGRAM)
    return str(PROGRAM)


class ObjectStoreServer:
    """A running server. Its bucket is the directory `bucket`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.bucket = directory / BUCKET
        self.bucket.mkdir(exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Return what clients need."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self.port}",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        address = f"{HOST}:{self.port}"
        self._process = subprocess.Popen(
            [versitygw_program(), "--quiet", "--port", address, "posix", str(self._directory)],
            env={**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
            stdout=subprocess.DEVNULL,
        )
        until(self._answers, f"versitygw does not listen on {address}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "versitygw has ended"
        with suppress(OSError), socket.create_connection((HOST, self.port)):
            return True
        return False


@contextmanager
def object_store_server(directory: Path) -> Iterator[ObjectStoreServer]:
    """Run a server that keeps its buckets in a directory."""
    server = ObjectStoreServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def in_a_fork(work: Callable[[], object]) -> None:
    """Run what uses obstore in a child: processes that are forked from one that has used it could not."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the parent fails
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "see what the child has printed"
