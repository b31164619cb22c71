"""Programs that a test runs to their end, and processes that stand still."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from tests.support.polling import PATIENCE_S


class Piped(subprocess.Popen[Any]):
    """A program whose streams are pipes, as far as a test uses them."""

    stdin: IO[Any]
    stdout: IO[Any]
    stderr: IO[Any]


def ran(command: Iterable[object], **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it has printed, as text; it may fail unless `check` is given."""
    given = {"capture_output": True, "text": True, "check": False, "timeout": PATIENCE_S, **how}
    return subprocess.run([str(word) for word in command], **given)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Processes that stand still until they go on, the last one first."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def loaded(code: str, *modules: str) -> list[str]:
    """Return which of these modules, and of those in them, a new process has after some code."""
    wanted = tuple(f"{name}." for name in modules)
    listed = f"print([name for name in sys.modules if f'{{name}}.'.startswith({wanted!r})])"
    done = ran([sys.executable, "-c", f"import sys\n{code}\n{listed}"], check=True)
    found: list[str] = ast.literal_eval(done.stdout.splitlines()[-1])
    return found
