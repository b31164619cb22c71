"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
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
