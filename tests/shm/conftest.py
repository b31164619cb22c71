"""What tests of shared memory need: children that are reaped, a directory on a tmpfs, seeds that are told."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shm.region import file_system_of
from tests.support import forms
from tests.support.polling import is_readable


@pytest.fixture(scope="session")
def effort() -> Callable[[int], int]:
    """How many rounds a stress test makes, of those of its short form: 20 times as many in its long one."""
    return lambda count: 20 * count if forms.is_long() else forms.rounds(count)


class Child:
    """A forked process that runs one function; its exit code is 0 if that returned."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException:  # noqa: BLE001 - the fork exits in any case
                traceback.print_exc()
            finally:
                os._exit(code)
        self.code: int | None = None

    def wait(self, timeout_s: float = 60.0) -> int:
        """The exit code, negative for a signal; a child that does not end in time is killed, a failure."""
        if self.code is None:
            pidfd = os.pidfd_open(self.pid)
            ended = is_readable(pidfd, timeout_s)
            os.close(pidfd)
            if not ended:
                self.kill()
                pytest.fail(f"child {self.pid} hung for {timeout_s} s")
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill(self) -> None:
        """SIGKILL, and the reaping."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


Fork = Callable[[Callable[[], None]], Child]


@pytest.fixture
def fork() -> Iterator[Fork]:
    """Starts children; whatever still runs when the test ends is killed and reaped."""
    children: list[Child] = []

    def start(work: Callable[[], None]) -> Child:
        children[:] = [child for child in children if child.code is None]
        children.append(Child(work))
        return children[-1]

    yield start
    for child in children:
        child.kill()


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that are the same in each run; pytest prints the seed of a test that failed."""
    seed = int(os.environ.get("SHM_TEST_SEED", "20240607"))
    print(f"{request.node.name}: SHM_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    """An empty directory on a tmpfs, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="shm-test-", dir="/dev/shm"))
    assert file_system_of(path) == "tmpfs"
    yield path
    shutil.rmtree(path)
