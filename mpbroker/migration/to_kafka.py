"""`mpbroker export`: prepares the log directories of a stopped broker for a start of Apache Kafka 4.3.

Partitions, checkpoints, groups, transactions and the metadata log have Kafka's formats already. Kafka also
needs a snapshot with feature levels, the quorum's only voter, and the directory of each partition. The export
puts this snapshot next to the log, by one rename, and removes earlier snapshots. Nothing else changes, so
mpbroker can still use the directories until Kafka has been started. A start of mpbroker removes the snapshot.
Kafka gets the object store, too, if one is named (`bucket_export`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from mpbroker.migration.bucket_export import Bucket, BucketExport, drop_topic
from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.kraft_snapshot import Voter, bootstrap, snapshot
from mpbroker.migration.log_dirs import LogDirs, Replicas, held, leader_epoch_in, replicas_in, strays_in
from mpbroker.migration.metadata_log import read_image
from mpbroker.migration.moved import Moved, counts
from mpbroker.migration.ownership import read_ownership
from mpbroker.migration.snapshot_files import SnapshotId, remove_snapshots
from mpbroker.protocol.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC
from mpbroker.storage import names
from mpbroker.storage.checkpoints import write_whole
from mpbroker.storage.directory_layout import directories_in
from mpbroker.storage.directory_lock import restricted_new_files
from mpbroker.storage.names import METADATA_DIRECTORY
from mpbroker.storage.segments import segments_of

BOOTSTRAP: Final = "bootstrap.checkpoint"
CONTROLLER_LISTENER: Final = "CONTROLLER"
NO_LEADER: Final = -1
FEATURES: Final[Mapping[str, int]] = {
    "metadata.version": 30,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
"""The feature levels with which Kafka 4.3 formats a node (kafka-storage.sh format), with one exception.

eligible.leader.replicas.version is missing: with level 1 Kafka's controller would consider the only replica
lost, because it does not know the broker's epoch. The level can be raised later (kafka-features.sh upgrade).
"""


class Export(Moved, kw_only=True):
    """The result of an export, or of a dry run. `settings` are lines for Kafka's server.properties."""

    files: list[str]
    notes: list[str]
    settings: list[str]


def export(
    paths: Sequence[Path], controller: tuple[str, int], *, is_dry: bool, bucket: Bucket | None = None
) -> Export:
    """Export all log directories of a broker. `controller`: host and port for Kafka's controller.

    `bucket`: export the broker's object store, too. Raises CannotMove, FatalError, OSError, StoreError.
    """
    with held(paths, is_dry=is_dry) as found:
        if read_ownership(found.home).is_kafkas:
            raise CannotMove(f"{found.home} is Apache Kafka's already: start Kafka on it")
        _check_used(found)
        image = read_image(found.metadata, is_log_whole=True)
        if image.tiered and bucket is None:
            raise CannotMove(
                f"{found.metadata}: topics have records in an object store: {', '.join(image.tiered)}. "
                "Export it, too, with mpbroker remote export --url URL, for a Kafka with Aiven's plug-in"
            )
        if image.unknown:
            types = ", ".join(map(str, sorted(image.unknown)))
            raise CannotMove(
                f"{found.metadata} has records of types that this version does not know ({types}): a later "
                "version of mpbroker wrote them. Export with that version"
            )
        tiered = None if bucket is None else BucketExport(bucket, found)
        if tiered is not None:
            # An earlier export may have left it, or an import without the object store.
            drop_topic(image)
        there = replicas_in(found, image)
        _complete(image, found, there)
        done = counts(image, found)
        if tiered is not None:
            tiered.check(image, there, is_dry=is_dry)
            done |= {"segments": len(tiered.segments)}
        files = _files(image, found, controller)
        if not is_dry:
            remove_snapshots(found.metadata)
            # Kafka takes every directory for a partition's.
            shutil.rmtree(found.home / names.REMOTE_CACHE, ignore_errors=True)
            with restricted_new_files():
                if tiered is not None:
                    tiered.write_topic()
                    tiered.close_ledger()
                for path, data in files.items():
                    write_whole(path, data)
        notes = [f"{path} belongs to no topic; Kafka will set it aside" for path in strays_in(image, there)]
        if tiered is not None:
            notes.append(tiered.note)
        settings = [*_settings(image, found, controller), *(() if tiered is None else tiered.settings())]
        return Export(**done, files=list(map(str, files)), notes=notes, settings=settings)


def _check_used(found: LogDirs) -> None:
    """Raise CannotMove if the broker has no topics, users or settings to export. Raises OSError."""
    segments = [found.metadata / names.segment_name(base) for base in segments_of(found.metadata)]
    is_empty = bool(segments) and not any(path.stat().st_size for path in segments)
    inside = (name for home in found.paths for name in directories_in(home) if name != METADATA_DIRECTORY)
    # If there are partitions, the metadata log is empty because metadata have been lost.
    if is_empty and not any(map(names.is_live_partition, inside)):
        raise CannotMove(
            f"{found.home} has no topics, users or settings yet, so there is nothing to export: start Kafka "
            "on an empty directory"
        )


def _complete(image: ClusterImage, found: LogDirs, there: Replicas) -> None:
    """Add feature levels, leader epochs and directory ids to the image. Raises CannotMove, OSError."""
    image.features = dict(FEATURES)
    for topic, topic_id, record in list(image.all_partitions()):
        path = there[topic, record.partition_id]
        image.partitions[topic_id][record.partition_id] = structs.replace(
            record,
            # As a stopped Kafka leaves it: its controller elects the leader when the broker is there.
            leader=NO_LEADER,
            leader_epoch=max(record.leader_epoch, leader_epoch_in(path)),
            directories=[found.ids[path.parent]],
        )


def _files(image: ClusterImage, found: LogDirs, controller: tuple[str, int]) -> dict[Path, bytes]:
    """Return the files to write: contents by path. The snapshot is last because it completes the export."""
    now_ms = time.time_ns() // 1_000_000
    voter = Voter(found.node_id, found.ids[found.home], CONTROLLER_LISTENER, *controller)
    name = SnapshotId(image.next_offset, image.epoch).file_name
    return {
        found.home / BOOTSTRAP: bootstrap(image.features, now_ms),
        found.metadata / name: snapshot(image, voter, now_ms),
    }


def _settings(image: ClusterImage, found: LogDirs, controller: tuple[str, int]) -> list[str]:
    host, port = controller
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [
        "process.roles=broker,controller",
        f"node.id={found.node_id}",
        f"log.dirs={','.join(map(str, found.paths))}",
        f"metadata.log.dir={found.home}",
        f"controller.quorum.bootstrap.servers={where}",
        f"# or, instead of that line: controller.quorum.voters={found.node_id}@{where}",
        f"controller.listener.names={CONTROLLER_LISTENER}",
        "# instead of PLAINTEXT://localhost:9092 mpbroker's listeners, which the directories do not keep,",
        "# and its advertised.listeners, protocol map and settings of TLS and SASL if it has any:",
        f"listeners=PLAINTEXT://localhost:9092,{CONTROLLER_LISTENER}://{where}",
        "offsets.topic.replication.factor=1",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "share.coordinator.state.topic.replication.factor=1",
        "share.coordinator.state.topic.min.isr=1",
    ]
    sizes = {name: len(image.partitions[topic_id]) for topic_id, name in image.topics.items()}
    for topic, setting in (
        (GROUP_TOPIC, "offsets.topic.num.partitions"),
        (TRANSACTION_TOPIC, "transaction.state.log.num.partitions"),
    ):
        if topic in sizes:
            lines.append(f"{setting}={sizes[topic]}")
    if image.acls:
        lines.append("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer")
        lines.append("# super.users as in mpbroker's settings")
    if image.tokens:
        lines.append("# delegation.token.secret.key as in mpbroker's settings")
    return lines
