"""Takes samples of a broker that does not run, from its log directories: partitions, and commits of groups.

Reads only the end of each partition, and all records of `__consumer_offsets`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpbroker.client.group_descriptions import consumer_group
from mpbroker.coordinator.groups.consumer.described_group import description
from mpbroker.coordinator.runtime.log_records import UnreadableRecord
from mpbroker.inspection.directory import InspectedDirectory, open_directory
from mpbroker.inspection.partition import Partition, segment_paths
from mpbroker.inspection.segment import batches, mapped
from mpbroker.observe.committed_groups import CommittedGroup, CommittedGroups
from mpbroker.observe.samples import BrokerSeen, Groups, GroupSeen, Health, PartitionSeen, Sample
from mpbroker.protocol.topic_names import GROUP_TOPIC, METADATA_TOPIC
from mpbroker.reading.errors import CorruptLog, OptionError, SourceUnavailable
from mpbroker.reading.local_catalog import offsets_in_files
from mpbroker.reading.log_dirs import Identity, with_siblings
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_topic_id

GROUP_BYTES_MAX: Final = 64 << 20
"""Groups are shown only if their topic has no more bytes than this: it is read as a whole."""


STOPPED: Final = "stopped"


class NotAtRest(Exception):
    """The directories are not a broker's, or a broker has them open."""


def sample(log_dirs: Sequence[str]) -> tuple[Sample, Groups]:
    """Return a sample of a stopped broker's partitions, and its groups. Raises NotAtRest, OSError."""
    identities = _identities(log_dirs)
    directories = [open_directory(path) for path in identities]
    for one in directories:
        if one.is_live:
            raise NotAtRest(f"a broker has {one.path} open, and cannot be asked")
    partitions = [
        partition for one in directories for partition in one.partitions if partition.topic != METADATA_TOPIC
    ]
    seen, unreadable = _partitions(partitions)
    now_ns = time.monotonic_ns()
    broker = _broker(identities, directories, unreadable)
    groups = _groups(now_ns, partitions)
    return Sample(now_ns, broker, partitions=tuple(seen)), groups


def _identities(log_dirs: Sequence[str]) -> dict[Path, Identity]:
    try:
        return with_siblings(log_dirs)
    except (OptionError, SourceUnavailable) as error:
        raise NotAtRest(str(error)) from error


def _broker(
    identities: dict[Path, Identity], directories: Sequence[InspectedDirectory], unreadable: Sequence[str]
) -> BrokerSeen:
    notes = []
    if not all(one.is_clean for one in directories):
        notes.append("the last stop was not clean: the next start may find more, or cut off a torn end")
    if unreadable:
        notes.append(f"cannot be read: {', '.join(unreadable)}")
    node_id = next((one.node_id for one in identities.values()), "")
    return BrokerSeen(
        Health.STOPPED,
        "; ".join(notes),
        node_id=int(node_id) if node_id.isdecimal() else None,
        log_dirs=tuple(map(str, identities)),
    )


def _partitions(partitions: Iterable[Partition]) -> tuple[list[PartitionSeen], list[str]]:
    """Return samples of the partitions, and the names of the partitions that cannot be read."""
    seen, unreadable = [], []
    for one in partitions:
        try:
            seen.append(_partition(one))
        except (SourceUnavailable, CorruptLog, OSError):
            unreadable.append(one.path.name)
    return seen, unreadable


def _partition(one: Partition) -> PartitionSeen:
    """Return a partition's offsets, size and segments. Raises SourceUnavailable, CorruptLog, OSError."""
    sizes = [path.stat().st_size for path in segment_paths(one.path)]
    start, end = offsets_in_files(one.path)
    start = max(start, one.log_start)
    end = max(end, start)
    return PartitionSeen(one.topic, one.partition, start, end, end, sum(sizes), len(sizes))


# ---- groups


def _groups(now_ns: int, partitions: Sequence[Partition]) -> Groups:
    directories = [one.path for one in partitions if one.topic == GROUP_TOPIC]
    paths = [path for directory in directories for path in segment_paths(directory)]
    size = sum(path.stat().st_size for path in paths)
    if size > GROUP_BYTES_MAX:
        return Groups(now_ns, problem=f"{GROUP_TOPIC} has {size:,} bytes; start the broker to see the groups")
    committed = CommittedGroups()
    for number, directory in enumerate(directories):
        for batch in _batches(directory):
            with suppress(CorruptBatch, UnreadableRecord):
                committed.take(number, batch)
    names = _topic_names(partitions) if any(one.consumer for one in committed.groups.values()) else {}
    return Groups(now_ns, tuple(_group(name, one, names) for name, one in sorted(committed.groups.items())))


def _group(name: str, found: CommittedGroup, names: Mapping[bytes, str]) -> GroupSeen:
    """Return a sample of a group. A classic group has no assignments: they ended with the broker."""
    if found.consumer is None:
        return GroupSeen(name, STOPPED, None, found.offsets, type=found.type)
    group = consumer_group(description(found.consumer, "", names.get))
    assigned = frozenset(place for member in group.members for place in member.partitions)
    return GroupSeen(name, STOPPED, found.members, found.offsets, assigned, found.type, group)


def _topic_names(partitions: Sequence[Partition]) -> dict[bytes, str]:
    """Return the names of topics by id, from one partition of each."""
    names = {}
    for topic, path in {one.topic: one.path for one in partitions}.items():
        with suppress(CheckpointCorrupt, OSError):
            names[read_topic_id(path) or b""] = topic
    return names


def _batches(directory: Path) -> Iterator[Batch]:
    for path in segment_paths(directory):
        with mapped(path) as view:
            for frame in batches(view, int(path.stem)):
                # A torn end is cut off by the next start.
                if not isinstance(frame, CorruptBatch):
                    yield Batch(view, frame)
