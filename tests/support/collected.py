"""The process that collects all tests of a run, keeps their modules, and forks workers of pytest-xdist."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from tests.support.preloaded import Start

# What turns a run into a collection by this process alone.
COLLECTS = ("--collect-only", "-qq", "--numprocesses=0", "--dist=no")


def collect(directory: str, *arguments: str) -> None:
    """Import what a run with these arguments imports. What it says is for each worker to say again."""
    environment, path = dict(os.environ), list(sys.path)
    os.chdir(directory)
    pytest.main([*arguments, *COLLECTS])
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    # Workers neither look through it nor copy it.
    gc.collect()
    gc.freeze()
    # Ctrl-C is for those that run tests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def become(start: Start, output: int, source: int) -> NoReturn:
    """Be what execnet starts: Python that runs the line which it reads first, and ends as Python does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, standard in ((source, 0), (output, 1)):
        os.dup2(fd, standard)
        os.close(fd)
    os.chdir(start.directory)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.argv = ["-c"]
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    sys.exit()


if __name__ == "__main__":
    collect(*sys.argv[2:])
    # Pytest would warn of modules that were there before it.
    from tests.support import preloaded

    preloaded.serve(socket.socket(fileno=int(sys.argv[1])), become)
