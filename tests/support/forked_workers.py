"""Workers of pytest-xdist that are forked from the process that starts them, when it has imported all tests.

As programs of their own each of them would import all modules, and in a fresh clone compile them and rewrite
their assertions: on two processors that took longer than a minute.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import random
import signal
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import pytest
from execnet import gateway_base, gateway_io

ROOT = Path(__file__).parents[2]


class Worker:
    """A process that waits for what to do: what of `subprocess.Popen` execnet uses."""

    stdin: BinaryIO
    stdout: BinaryIO

    def __init__(self, others: Sequence[Worker]) -> None:
        theirs, mine = os.pipe()
        result, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Or nobody notices that the process that has started them is gone.
            for one in others:
                one.stdin.close()
                one.stdout.close()
            os.close(mine)
            os.close(result)
            _work(theirs, answers)
        os.close(theirs)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(mine, "wb"), os.fdopen(result, "rb")

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _work(orders: int, answers: int) -> NoReturn:
    """Be what `gateway_io.popen_bootstrapline` starts."""
    code = 1
    try:
        for fd, to in ((orders, 0), (answers, 1)):
            os.dup2(fd, to)
            os.close(fd)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        # What is chosen by chance differs.
        random.seed()
        exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
        code = 0
    except BaseException:  # noqa: BLE001 - a fork ends here in any case
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[object]) -> None:
    """Fork the workers if all tests are to run; others that come later are programs."""
    if config.args != config.getini("testpaths") or config.getoption("ignore"):
        return
    gc.disable()
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        # Who collects it says what is wrong with it.
        with contextlib.suppress(Exception):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    gc.freeze()
    gc.enable()
    workers: list[Worker] = []
    for _ in specs:
        workers.append(Worker(workers))
    gateway_io.create_io = partial(_created, workers, gateway_io.create_io)


def _created(workers: list[Worker], create: Any, spec: Any, execmodel: Any) -> Any:
    """Return how execnet speaks with a worker."""
    if not workers:
        return create(spec, execmodel)
    made = gateway_io.Popen2IOMaster.__new__(gateway_io.Popen2IOMaster)
    made.popen = worker = workers.pop(0)
    gateway_base.Popen2IO.__init__(made, worker.stdin, worker.stdout, execmodel)
    return made
