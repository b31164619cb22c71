"""The file `mpbroker.mirror`: a broker whose first log directory has it answers clients for a standby.

Such a broker, a *face*, leads no partition. It describes to clients the topics, users and settings in the
metadata log of the mirror, which is the standby's copy of the leader's log directories. The standby replaces
the file, with a higher `version`, when it has changed that log.

The face of a standby that serves reads lets consumers fetch what the newest cut has (KIP-392). It reads links
to the files of the mirror, in a directory for each partition as of a cut. Only the coordinator of the face
writes the slots of these partitions: the last ones of the table, which no log worker gives out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.replaced_files import FollowedFile, read_json, write_json
from mpbroker.ipc.table import Partition, PartitionFlag, pack_partition

MIRROR_FILE: Final = "mpbroker.mirror"


class ReadPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition whose records consumers may fetch here, as of a cut.

    Its slot and links never change: a cut that changes the partition gives it others. `place` counts the
    slots from the table's end, `generation` is the slot's, and grows with each cut. `high_watermark` and
    `last_stable` are (offset, base of the segment, position).
    """

    topic_id: bytes
    partition: int
    place: int
    generation: int
    log_dir: int
    leader_epoch: int
    log_start: int
    high_watermark: tuple[int, int, int]
    last_stable: tuple[int, int, int]
    aborted_end: int

    @property
    def slot(self) -> bytes:
        """Return what the partition table has of it."""
        return pack_partition(
            Partition(
                *(self.topic_id, self.partition, self.generation, PartitionFlag.PARTITION_LIVE, 0),
                *(self.leader_epoch, self.log_dir, self.log_start, *self.high_watermark, *self.last_stable),
                *(self.high_watermark[0], self.aborted_end),
            )
        )


class MirrorPointer(msgspec.Struct, frozen=True):
    """Where the mirror is: `log_dirs` are its directories, with `__cluster_metadata-0` in one of them.

    `partitions` are those that consumers may read, None if the standby serves no reads.
    """

    version: int
    log_dirs: list[str]
    partitions: list[ReadPartition] | None = None


def read_mirror(config: BrokerConfig) -> MirrorPointer | None:
    """Return the pointer of a face with this configuration; None if the broker is no face. Raises OSError."""
    return read_json(Path(config.log_dirs[0]) / MIRROR_FILE, MirrorPointer)


def follows(config: BrokerConfig) -> bool:
    """Return whether the broker with this configuration is a face."""
    return (Path(config.log_dirs[0]) / MIRROR_FILE).exists()


def write_mirror(directory: Path, mirror: MirrorPointer) -> None:
    """Replace the file in a face's log directory. Raises OSError."""
    write_json(directory / MIRROR_FILE, mirror)


def followed_mirror(directory: Path) -> FollowedFile[MirrorPointer]:
    """Return the file in a face's log directory, to be read after each replacement."""
    return FollowedFile(directory / MIRROR_FILE, MirrorPointer)
