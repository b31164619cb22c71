"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Any

from tests.support.polling import PATIENCE_S


def ran(command: Iterable[object], **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and return what it has printed, as text; it may fail unless `check` is given."""
    given = {"capture_output": True, "text": True, "check": False, "timeout": PATIENCE_S, **how}
    return subprocess.run([str(word) for word in command], **given)
