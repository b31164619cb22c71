"""Exports an object store: Apache Kafka goes on with it, by its topic `__remote_log_metadata`.

The objects of segments stay as they are: Aiven's plug-in for Kafka reads and writes the same layout. The
topic gets the records of all segments in the ledger. The ledger's last entry then says that the store is
Kafka's, so that no mpbroker writes there beside it. Only an import takes it back.
"""

from __future__ import annotations

import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mpbroker.coordinator.metadata.metadata_records import metadata_batches
from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.log_dirs import LogDirs, Replicas, epochs_in
from mpbroker.migration.new_log import write_log
from mpbroker.migration.segment_records import PARTITIONS, SEGMENTS_TOPIC, metadata_partition, records_of
from mpbroker.protocol.messages import PartitionRecord
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.remote.layout.indexes import epochs_within
from mpbroker.remote.layout.manifest import CHUNK_BYTES
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.events import Exported, SegmentAdded, Started
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerDamaged, OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.storage import names
from mpbroker.storage.checkpoints import fsync_directory, read_offsets
from mpbroker.storage.directory_layout import directories_in
from mpbroker.storage.leader_epochs import Epochs
from mpbroker.storage.names import REMOTE_OWNER
from mpbroker.storage.segments import segments_of

_SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "min.insync.replicas": "1",
    "remote.storage.enable": "false",
    "retention.ms": "-1",
}
"""The settings of `__remote_log_metadata` (Kafka: TopicBasedRemoteLogMetadataManager)."""
_EPOCH: Final = 0
_BACKENDS: Final = "io.aiven.kafka.tieredstorage.storage"
_BUCKETS: Final = {
    "s3": ("s3.S3Storage", "s3.bucket.name"),
    "gs": ("gcs.GcsStorage", "gcs.bucket.name"),
    "az": ("azure.AzureBlobStorage", "azure.container.name"),
}


@dataclass(frozen=True)
class Bucket:
    """An object store, and the URL that names it."""

    url: str
    store: ObjectStore


class BucketExport:
    """Gives the store of a stopped broker to Kafka: `check`, `write_topic`, `close_ledger`, each idempotent.

    `segments` are those that Kafka gets.
    """

    def __init__(self, bucket: Bucket, found: LogDirs) -> None:
        self._bucket = bucket
        self._found = found
        self._reader = LedgerReader(bucket.store)
        self._topic_id = uuid.uuid4().bytes
        self.segments: list[SegmentAdded] = []

    def check(self, image: ClusterImage, there: Replicas, *, is_dry: bool) -> None:
        """Read the ledger, check that the logs go on where it ends, and add Kafka's topic to the image.

        Unless `is_dry`, add an entry to the ledger, so that a late request of the stopped broker is refused.
        Raises CannotMove, StoreError, OSError.
        """
        try:
            self._open(is_dry=is_dry)
        except (Fenced, LedgerDamaged, OwnerDamaged) as error:
            raise CannotMove(f"{self._bucket.url}: {error}") from error
        for (topic_id, partition), segments in sorted(self._reader.state.segments.items()):
            topic = image.topics.get(topic_id, "")
            # The others were deleted, or are no longer tiered. An import has their objects removed.
            if topic in image.tiered:
                _check_follows(there[topic, partition], segments)
                self.segments += segments
        _add_topic(image, self._found, self._topic_id)

    def _open(self, *, is_dry: bool) -> None:
        reader, found = self._reader, self._found
        reader.read_to_end()
        homes = [path for path in found.paths if (path / REMOTE_OWNER).exists()]
        if len(homes) != 1:
            raise CannotMove(
                f"{len(homes)} of {', '.join(map(str, found.paths))} have the file {REMOTE_OWNER}: export "
                "the directories of the broker that writes to the object store"
            )
        file = OwnerFile(homes[0])
        self._who = found.cluster_id, found.node_id, socket.gethostname()
        self._is_closed = reader.state.exported is not None
        if reader.last is None or reader.last.owner != file.owner.nonce:
            raise CannotMove(f"{self._bucket.url} has no ledger of the broker with {file.path}")
        self._ledger = Ledger(reader, file)
        self._ledger.check(found.cluster_id)
        if not is_dry and not self._is_closed:
            self._ledger.start(Started(*self._who))

    def write_topic(self) -> None:
        """Write the partitions of Kafka's topic, in place of those that are there. Raises OSError."""
        remove_topic(self._found)
        now_ms = time.time_ns() // 1_000_000
        values: dict[int, list[bytes]] = {}
        for one in self.segments:
            number = metadata_partition(one.topic_id, one.partition, PARTITIONS)
            values.setdefault(number, []).extend(records_of(one, self._found.node_id, now_ms))
        for number in range(PARTITIONS):
            directory = self._found.home / names.partition_name(SEGMENTS_TOPIC, number)
            directory.mkdir()
            write_log(
                directory,
                SEGMENTS_TOPIC,
                number,
                self._topic_id,
                [(_EPOCH, 0)],
                metadata_batches(values.get(number, ()), now_ms, leader_epoch=_EPOCH),
            )
        fsync_directory(self._found.home)

    @property
    def note(self) -> str:
        first, last = (names.partition_name(SEGMENTS_TOPIC, number) for number in (0, PARTITIONS - 1))
        return (
            f"{self._found.home / first} to {last}: the topic by which Kafka knows the segments in the store"
        )

    def close_ledger(self) -> None:
        """Say in the ledger that the store is Kafka's. Raises CannotMove, StoreError."""
        if not self._is_closed:
            try:
                self._ledger.append([Exported(*self._who)])
            except Fenced as error:
                raise CannotMove(f"{self._bucket.url}: {error}") from error

    def settings(self) -> Iterator[str]:
        """Yield lines for Kafka's server.properties."""
        yield from (
            "remote.log.storage.system.enable=true",
            "# the listener by which Kafka reaches itself; where Aiven's plug-in is, its core and the part",
            "# for this object store:",
            "remote.log.metadata.manager.listener.name=PLAINTEXT",
            "remote.log.storage.manager.class.path=/opt/tiered-storage/core/*:/opt/tiered-storage/storage/*",
            "rlmm.config.remote.log.metadata.topic.replication.factor=1",
            "rlmm.config.remote.log.metadata.topic.min.isr=1",
            f"rlmm.config.remote.log.metadata.topic.num.partitions={PARTITIONS}",
            "remote.log.storage.manager.class.name=io.aiven.kafka.tieredstorage.RemoteStorageManager",
            f"rsm.config.chunk.size={CHUNK_BYTES}",
        )
        parts = urlsplit(self._bucket.url)
        if parts.scheme == "file":
            yield f"rsm.config.storage.backend.class={_BACKENDS}.filesystem.FileSystemStorage"
            yield f"rsm.config.storage.root={parts.path}"
            return
        backend, key = _BUCKETS[parts.scheme]
        yield f"rsm.config.storage.backend.class={_BACKENDS}.{backend}"
        yield f"rsm.config.storage.{key}={parts.netloc}"
        if prefix := parts.path.strip("/"):
            yield f"rsm.config.key.prefix={prefix}/"
        yield "# region, endpoint and credentials of the object store: see the plug-in's documentation"


def _check_follows(path: Path, segments: list[SegmentAdded]) -> None:
    """Check that a log goes on where its segments in the object store end. Raises CannotMove, OSError."""
    bases = segments_of(path)
    if not bases or bases[0] > segments[-1].end:
        raise CannotMove(
            f"{path} begins at offset {bases[0] if bases else 'none'}, and the object store has offsets up "
            f"to {segments[-1].end - 1}: restore the segments between them from a copy"
        )
    check_epochs(path, epochs_in(path), ((one.base, one.end, one.epochs) for one in segments))


def check_epochs(path: Path, epochs: Epochs, segments: Iterable[tuple[int, int, Epochs]]) -> None:
    """Check that segments have their log's leader epochs. `segments` are (base, end, leader epochs).

    Kafka deletes a segment that has others. Raises CannotMove, OSError.
    """
    topic, _, number = path.name.rpartition("-")
    starts = path.parent / names.LOG_STARTS
    log_start = read_offsets(starts).get((topic, int(number)), 0) if starts.exists() else 0
    for base, end, its in segments:
        first = max(base, log_start)
        if first < end and epochs_within(epochs, first, end) != epochs_within(its, first, end):
            raise CannotMove(
                f"{path / names.LEADER_EPOCHS} has other leader epochs for offsets {first} to {end - 1} than "
                "the segment in the object store: restore the file from a copy"
            )


def _add_topic(image: ClusterImage, found: LogDirs, topic_id: bytes) -> None:
    """Add `__remote_log_metadata` to an image."""
    image.topics[topic_id] = SEGMENTS_TOPIC
    image.configs[ConfigResourceType.TOPIC, SEGMENTS_TOPIC] = dict(_SETTINGS)
    node, directory = found.node_id, found.ids[found.home]
    image.partitions[topic_id] = {
        number: PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=[node],
            isr=[node],
            leader_epoch=_EPOCH,
            partition_epoch=0,
            directories=[directory],
        )
        for number in range(PARTITIONS)
    }


def drop_topic(image: ClusterImage) -> None:
    """Remove `__remote_log_metadata` from an image."""
    for topic_id in [key for key, name in image.topics.items() if name == SEGMENTS_TOPIC]:
        del image.topics[topic_id], image.partitions[topic_id]
    image.configs.pop((ConfigResourceType.TOPIC, SEGMENTS_TOPIC), None)


def remove_topic(found: LogDirs) -> None:
    """Remove the partitions of `__remote_log_metadata`, durably. Raises OSError."""
    for home in found.paths:
        for name in list(directories_in(home)):
            parsed = names.parse_partition(name)
            if parsed.topic == SEGMENTS_TOPIC and not parsed.suffix:
                shutil.rmtree(home / name)
        fsync_directory(home)
