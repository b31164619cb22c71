"""Whether a descriptor has something; unlike select() for any number of open files."""

from __future__ import annotations

import select
from typing import Protocol


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


def is_readable(what: int | _HasFileno, timeout_s: float = 0.0) -> bool:
    """Within so many seconds."""
    poll = select.poll()
    poll.register(what, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
