"""The public region of a broker on this host, which is read without asking any process."""

from __future__ import annotations

import os
from pathlib import Path

from mpbroker.cli.errors import CliError
from mpbroker.metrics import snapshot
from shm.region import LayoutMismatch, Region, RegionUnavailable


def attach(path: Path) -> Region:
    """Attach the region that this file is. Raises CliError."""
    try:
        return snapshot.attach(path)
    except RegionUnavailable as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise CliError(f"{path} cannot be read ({reason}): no broker runs, or another user's") from error
    except LayoutMismatch as error:
        raise CliError(str(error)) from error
