"""The cluster of a command, from the flags that all client commands have."""

from pathlib import Path
from typing import NamedTuple


class ClusterAddress(NamedTuple):
    """A cluster's address and the file with the client's settings."""

    bootstrap: str
    command_config: Path | None = None
