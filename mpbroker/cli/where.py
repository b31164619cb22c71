"""Which cluster a command speaks with; the flags that all client commands have."""

from pathlib import Path
from typing import NamedTuple


class Where(NamedTuple):
    """Which cluster, and how to talk to it."""

    bootstrap: str
    command_config: Path | None = None
