"""The file `mpbroker.lag` of a face: how far its standby is behind the ledger. The standby writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from mpbroker.ipc.replaced_files import read_json, write_json
from shm.clock import boot_ns

LAG_FILE: Final = "mpbroker.lag"


class StandbyLag(msgspec.Struct, frozen=True):
    """The lag of a standby's mirror behind the ledger.

    It had all of it at `caught_up_ns`, by CLOCK_BOOTTIME (0: never). `entries` are read and not applied,
    `size` are bytes that are still to be downloaded for them. `cut_ms` is the instant of the mirror's cut
    (Unix time, 0: none). `url` is the object store's, which the face does not know.
    """

    caught_up_ns: int
    entries: int
    size: int
    cut_ms: int
    url: str = ""

    @property
    def behind_s(self) -> float:
        """Return the time since the mirror had all of the ledger; -1 if it never had."""
        return (boot_ns() - self.caught_up_ns) / 1e9 if self.caught_up_ns else -1.0


def write_lag(directory: Path, lag: StandbyLag) -> None:
    """Replace the file in a face's log directory. Raises OSError."""
    write_json(directory / LAG_FILE, lag)


def read_lag(directory: Path) -> StandbyLag | None:
    """Return what the file says; None for a broker that is no face. Raises OSError, msgspec.DecodeError."""
    return read_json(directory / LAG_FILE, StandbyLag)
