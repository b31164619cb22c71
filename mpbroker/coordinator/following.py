"""Reads what a coordinator takes from replaced files: the nodes of the cluster, and where a mirror is.

With a mirror the coordinator is that of a face (`mpbroker.ipc.mirror`): it publishes the leader's metadata in
place of its own, and changes none.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.metadata.replay import replay_mirror
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.ipc.metadata import METADATA_SLOT, PartitionImage, PartitionSlots
from mpbroker.ipc.mirror import MirrorPointer, ReadPartition, followed_mirror, follows
from mpbroker.ipc.nodes import Nodes, followed_nodes
from mpbroker.ipc.replaced_files import POLL_S
from mpbroker.storage.names import LOG_SUFFIX, METADATA_DIRECTORY
from shm.table import SlotTable

_log = logging.getLogger("mpbroker.coordinator")


class Following:
    """The files in the first log directory. `is_face`: the broker publishes the metadata in a mirror."""

    def __init__(self, config: BrokerConfig) -> None:
        directory = Path(config.log_dirs[0])
        self.is_face = follows(config)
        self._nodes = followed_nodes(directory)
        self._mirror = followed_mirror(directory)
        self._is_looking = self.is_face or config.remote_log_storage_system_enable
        # When to read the metadata in the mirror; None if it was read since it changed.
        self._read_at_s: float | None = None
        self._stamp: list[tuple[str, int, int]] | None = None
        self._partitions: list[ReadPartition] = []

    def new_nodes(self) -> bool:
        """Return whether `nodes` has changed."""
        return self._is_looking and self._nodes.poll()

    @property
    def nodes(self) -> Nodes | None:
        return self._nodes.content

    def new_partitions(self, table: SlotTable) -> dict[bytes, PartitionSlots] | None:
        """Write the slots of what consumers may read here; return them by topic. None if nothing is new.

        A slot that was given out before stays as it is: handlers may not know of the new one yet.
        """
        mirror = self._mirror.content
        partitions = mirror.partitions if mirror is not None else None
        if partitions is None or partitions is self._partitions:
            return None
        self._partitions = partitions
        images: dict[bytes, dict[int, PartitionImage]] = {}
        for one in partitions:
            slot = table.slots - 1 - one.place
            if slot <= METADATA_SLOT:
                _log.error("%d partitions are more than the partition table has slots", len(partitions))
                break
            table.write(slot, one.slot)
            images.setdefault(one.topic_id, {})[one.partition] = PartitionImage(
                one.partition, slot, one.generation
            )
        return {
            topic_id: PartitionSlots.of(
                some.get(number, PartitionImage(number, 0, 0)) for number in range(max(some) + 1)
            )
            for topic_id, some in images.items()
        }

    def new_state(self) -> MetadataState | None:
        """Return the metadata in the mirror if its log has changed, and can be read now."""
        if not self.is_face:
            return None
        now_s = time.monotonic()
        if self._mirror.poll():
            self._read_at_s = now_s
        mirror = self._mirror.content
        if mirror is None or self._read_at_s is None or now_s < self._read_at_s:
            return None
        # Take the stamp before reading the log: a write meanwhile then counts as a new change.
        if (stamp := _stamp(mirror)) == self._stamp:
            self._read_at_s = None
            return None
        state = replay_mirror(mirror.log_dirs)
        if state is None:
            self._read_at_s = now_s + POLL_S
        else:
            self._read_at_s, self._stamp = None, stamp
        return state


def _stamp(mirror: MirrorPointer) -> list[tuple[str, int, int]]:
    """Return what changes when the metadata log is written to: sizes and times of its segments."""
    found = []
    for directory in mirror.log_dirs:
        for path in sorted(Path(directory, METADATA_DIRECTORY).glob(f"*{LOG_SUFFIX}")):
            with suppress(FileNotFoundError):
                now = path.stat()
                found.append((str(path), now.st_size, now.st_mtime_ns))
    return found
