"""The file `mpbroker.mirror`: a broker whose first log directory has it answers clients for a standby.

Such a broker, a *face*, leads no partition. It describes to clients the topics, users and settings in the
metadata log of the mirror, which is the standby's copy of the leader's log directories. The standby replaces
the file, with a higher `version`, when it has changed that log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.replaced_files import FollowedFile, write_json

MIRROR_FILE: Final = "mpbroker.mirror"


class MirrorPointer(msgspec.Struct, frozen=True):
    """Where the mirror is: `log_dirs` are its directories, with `__cluster_metadata-0` in one of them."""

    version: int
    log_dirs: list[str]


def follows(config: BrokerConfig) -> bool:
    """Return whether the broker with this configuration is a face."""
    return (Path(config.log_dirs[0]) / MIRROR_FILE).exists()


def write_mirror(directory: Path, mirror: MirrorPointer) -> None:
    """Replace the file in a face's log directory. Raises OSError."""
    write_json(directory / MIRROR_FILE, mirror)


def followed_mirror(directory: Path) -> FollowedFile[MirrorPointer]:
    """Return the file in a face's log directory, to be read after each replacement."""
    return FollowedFile(directory / MIRROR_FILE, MirrorPointer)
