"""Files of Kafka's snapshots of metadata: `<offset>-<epoch>.checkpoint` (Kafka: Snapshots, KIP-630).

An export writes a snapshot for Kafka. mpbroker needs no snapshots, since its log has all records from the
beginning. The next start of mpbroker and the next export remove the snapshot, because it is then out of date,
and Kafka would load it before the log. Kafka also drops a log that ends before the latest snapshot, for
instance an older log from a backup.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.storage.checkpoints import fsync_directory
from mpbroker.storage.names import METADATA_DIRECTORY, OFFSET_DIGITS

log = logging.getLogger(__name__)

_EPOCH_DIGITS: Final = 10
_SNAPSHOT = re.compile(rf"(\d{{{OFFSET_DIGITS}}})-(\d{{{_EPOCH_DIGITS}}})\.checkpoint")


class SnapshotId(NamedTuple):
    """The offset after the last record that a snapshot replaces, and the epoch of that record."""

    end: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end:0{OFFSET_DIGITS}d}-{self.epoch:0{_EPOCH_DIGITS}d}.checkpoint"


def snapshots_of(directory: Path) -> list[SnapshotId]:
    """Return the complete snapshots in a metadata directory, the latest last. Raises OSError."""
    found = (_SNAPSHOT.fullmatch(path.name) for path in directory.iterdir())
    return sorted(SnapshotId(int(one[1]), int(one[2])) for one in found if one is not None)


def remove_snapshots(directory: Path) -> list[Path]:
    """Remove the snapshots in a metadata directory, durably. Return their paths. Raises OSError."""
    paths = [directory / one.file_name for one in snapshots_of(directory)]
    for path in paths:
        path.unlink()
    if paths:
        fsync_directory(directory)
    return paths


def forget_exports(log_dirs: Sequence[str]) -> None:
    """Remove snapshots of earlier exports, which will lack the changes of this run. Raises OSError."""
    for log_dir in log_dirs:
        directory = Path(log_dir) / METADATA_DIRECTORY
        # False for a log directory that has failed meanwhile: the broker continues without it.
        if os.path.isdir(directory):  # noqa: PTH112
            for path in remove_snapshots(directory):
                log.info("removed %s: the broker changes after that export. Export again before a move", path)
