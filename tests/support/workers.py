"""Workers of pytest-xdist that are forked from a process which has imported all modules of the run.

Imports are three quarters of what collecting thousands of tests costs, and each worker collects all of them.
So one process collects first (`collected.py`); each worker, and each that replaces one that has died, is a
fork of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from tests.support import preloaded

COLLECTED = "tests.support.collected"


class ForkedIO(Popen2IO):
    """The two pipes to a worker, as execnet has them to a program that it starts."""

    def __init__(self, collected: preloaded.Preloaded, execmodel: Any) -> None:
        (theirs_in, mine_out), (mine_in, theirs_out) = os.pipe(), os.pipe()
        order = preloaded.Start([], dict(os.environ), str(Path.cwd()))
        self.popen = collected.fork(order, theirs_out, theirs_in)
        os.close(theirs_in)
        os.close(theirs_out)
        super().__init__(os.fdopen(mine_out, "wb"), os.fdopen(mine_in, "rb"), execmodel)

    def wait(self) -> int:
        return self.popen.wait()

    def kill(self) -> None:
        self.popen.kill()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Begin to collect, and let execnet fork what it would start."""
    words = (str(Path.cwd()), *config.invocation_params.args)
    collected = preloaded.Preloaded(os.environ, COLLECTED, *map(str, words))
    starts: Callable[..., Any] = gateway_io.create_io

    def create_io(spec: Any, execmodel: Any) -> Any:
        is_plain = spec.popen and not spec.python and not spec.chdir
        return ForkedIO(collected, execmodel) if is_plain else starts(spec, execmodel)

    gateway_io.create_io = create_io
    config.add_cleanup(lambda: setattr(gateway_io, "create_io", starts))
