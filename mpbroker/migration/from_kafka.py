"""`mpbroker import`: takes over the log directories of a stopped Apache Kafka 4 node.

Partitions, including those with groups and transactions, stay where they are. The metadata are read from
Kafka's latest snapshot and the log after it, and are written as a log of ours into a new directory next to
Kafka's. The last step exchanges the names of these two directories. Before this step Kafka can still use the
log directories, and the import can be repeated. Afterwards mpbroker can use them, and Kafka's metadata are
kept under the other name. An object store changes hands just before that step (`bucket_import`).
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from mpbroker.config import resource_config
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.dynamic import usable
from mpbroker.config.topic_config import TopicConfigError, validate
from mpbroker.coordinator.metadata.metadata_records import (
    MetadataRecord,
    encode_record,
    feature_records,
    metadata_batches,
)
from mpbroker.coordinator.metadata.state import InconsistentMetadata, MetadataState, lone_partition
from mpbroker.migration.bucket_export import Bucket, drop_topic
from mpbroker.migration.bucket_import import BucketImport
from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.exchange import check_exchange, exchange
from mpbroker.migration.log_dirs import LogDirs, Replicas, epochs_in, held, replicas_in, strays_in
from mpbroker.migration.metadata_log import quorum_leader, read_image
from mpbroker.migration.moved import Moved, counts
from mpbroker.migration.new_log import write_log
from mpbroker.migration.ownership import read_ownership
from mpbroker.migration.segment_records import SEGMENTS_TOPIC
from mpbroker.protocol.messages import ConfigRecord, ProducerIdsRecord, TopicRecord
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from mpbroker.records.old_format import HEAD_BYTES, old_length
from mpbroker.storage import names
from mpbroker.storage.checkpoints import fsync_directory, write_epochs
from mpbroker.storage.directory_layout import name_all, own_files
from mpbroker.storage.directory_lock import restricted_new_files
from mpbroker.storage.leader_epochs import FIRST, Epochs
from mpbroker.storage.segments import segments_of
from mpbroker.storage.strict_stat import is_there


def _stray(purpose: bytes) -> str:
    """Return the name of a stray partition's directory, which both kinds of broker ignore.

    `purpose` (16 bytes) replaces the random bytes in the name.
    """
    return names.renamed(METADATA_TOPIC, 0, purpose.hex(), names.STRAY_SUFFIX)


MAKING: Final = _stray(b"mpbroker-making!")
"""The name of the directory of our metadata log while it is being written."""
PROBE: Final = _stray(b"mpbroker-probing")
_EXAMPLES: Final = 3
# Above the end of any log: loading it, ours begins the epoch at the end, and Kafka drops it.
ANY_END: Final = 2**63 - 1


class Import(Moved, kw_only=True):
    """The result of an import, or of a dry run. `left` lists settings and records that are not taken over.

    `kept`: the directory to which Kafka's metadata are moved; "" if no Kafka was started after an export.
    """

    left: list[str]
    kept: str
    log_dirs: list[str]


def import_(
    paths: Sequence[Path], *, is_dry: bool, sets_strays_aside: bool = False, bucket: Bucket | None = None
) -> Import:
    """Take over all log directories of a node.

    `sets_strays_aside`: accept partitions of unknown topics; the first start renames their directories.
    `bucket`: take over Kafka's object store, too. Raises CannotMove, FatalError, OSError, StoreError,
    StoreUnfit. After an error Kafka can still use the directories.
    """
    with held(paths, is_dry=is_dry) as found:
        tiered = None if bucket is None else BucketImport(bucket, found)
        log_dirs = list(map(str, found.paths))
        if not read_ownership(found.home).is_kafkas:
            if tiered is None:
                tiers = any(is_there(path / names.REMOTE_OWNER) for path in found.paths)
                other = ", or, after mpbroker remote export, take it back with mpbroker remote import"
                raise CannotMove(
                    f"{found.home} is mpbroker's already: start mpbroker on it{other if tiers else ''}"
                )
            tiered.take_back(is_dry=is_dry)
            whole = counts(read_image(found.metadata, is_log_whole=True), found)
            return Import(**whole, segments=tiered.count, left=[], kept="", log_dirs=log_dirs)
        image = read_image(found.metadata)
        _check_alone(image, found, has_bucket=bucket is not None)
        there = replicas_in(found, image)
        if tiered is not None:
            tiered.check(image, there)
            drop_topic(image)
            there = {key: path for key, path in there.items() if key[0] != SEGMENTS_TOPIC}
        _check_strays(image, found, there, sets_strays_aside=sets_strays_aside)
        left = [*_unread(image), *_notes(image, found, there), *_old_messages(there)]
        begun = _begun_epochs(image, there)
        config = BrokerConfig(remote_log_storage_system_enable=bucket is not None)
        records = list(_records(image, found, config, begun, there, left))
        _check_whole(records)
        kept = _unused_name(found.home)
        if not is_dry:
            with restricted_new_files():
                _take_over(records, kept, found, begun, tiered)
        count = 0 if tiered is None else tiered.count
        return Import(**counts(image, found), segments=count, left=left, kept=str(kept), log_dirs=log_dirs)


# ---- refusals


def _check_alone(image: ClusterImage, found: LogDirs, *, has_bucket: bool) -> None:
    """Raise CannotMove if the cluster has other brokers, replicas on other nodes, or an unnamed store."""
    node = found.node_id
    if others := sorted(image.brokers - {node}):
        listed = ", ".join(map(str, others))
        raise CannotMove(
            f"{found.metadata}: the cluster has other brokers too (node {listed}). Move all partitions to "
            f"node {node} with kafka-reassign-partitions.sh, stop the others, and unregister each with "
            "kafka-cluster.sh unregister"
        )
    elsewhere = [
        f"{topic}-{record.partition_id} ({', '.join(map(str, record.replicas))})"
        for topic, _, record in image.all_partitions()
        if record.replicas != [node]
    ]
    if elsewhere:
        raise CannotMove(
            f"{found.metadata}: {len(elsewhere)} partitions have replicas on other nodes than {node}: "
            f"{_some(elsewhere)}. Move them to it alone with kafka-reassign-partitions.sh"
        )
    if image.tiered and not has_bucket:
        raise CannotMove(
            f"{found.metadata}: topics have records in an object store: {_some(image.tiered)}. Import it, "
            "too, with mpbroker remote import --url URL, if Aiven's plug-in wrote it; or turn tiered storage "
            "off with remote.log.delete.on.disable=true, or copy these topics with MirrorMaker"
        )


def _check_strays(image: ClusterImage, found: LogDirs, there: Replicas, *, sets_strays_aside: bool) -> None:
    """Raise CannotMove if partitions are of unknown topics, unless `sets_strays_aside`.

    A partition of an unknown topic is a sign that the metadata may be an incomplete copy.
    """
    strays = strays_in(image, there)
    if not strays or (sets_strays_aside and image.topics):
        return
    advice = f"restore {found.metadata} from a whole copy"
    if image.topics:
        advice += (
            ", or move unwanted ones away. With --set-aside-strays the import continues, and the first start "
            "of mpbroker sets these partitions aside"
        )
    raise CannotMove(
        f"{found.metadata} knows no topic of {len(strays)} partitions that are there: {_some(strays)}. It "
        f"may be a copy that ended half way: {advice}"
    )


def _old_messages(there: Replicas) -> Iterator[str]:
    """Yield a note for each partition that begins with messages in the formats before Kafka 0.11.

    (Kafka 4 still reads such messages.) Raises OSError, and CannotMove if a partition has no segment.
    """
    for path in there.values():
        bases = segments_of(path)
        if not bases:
            raise CannotMove(f"{path} has no segment: restore it from a copy, or delete the topic with Kafka")
        with (path / names.segment_name(bases[0])).open("rb") as file:
            is_old = old_length(file.read(HEAD_BYTES)) > 0
        if is_old:
            yield (
                f"{path} begins with messages of before Kafka 0.11 and will be offline: copy the topic's "
                "records to a new topic with Kafka first"
            )


def _check_whole(records: Sequence[MetadataRecord]) -> None:
    """Raise CannotMove if the coordinator could not apply the new records."""
    try:
        MetadataState().apply_all(list(records))
    except InconsistentMetadata as error:
        raise CannotMove(f"Kafka's metadata contradict themselves: {error}") from error


# ---- the new records


def _unread(image: ClusterImage) -> Iterator[str]:
    for kind, count in sorted(image.unknown.items()):
        yield f"{count} records of type {kind}, which this version does not know"


def _notes(image: ClusterImage, found: LogDirs, there: Replicas) -> Iterator[str]:
    for path in strays_in(image, there):
        yield f"{path}: it belongs to no topic, and a start will set it aside"
    leader = quorum_leader(found.metadata)
    if leader not in (None, found.node_id):
        yield (
            f"decisions of the controller, node {leader}, since this broker was stopped: {found.metadata} is "
            "the broker's copy"
        )


def _records(
    image: ClusterImage,
    found: LogDirs,
    config: BrokerConfig,
    begun: Mapping[Path, Epochs],
    there: Replicas,
    left: list[str],
) -> Iterator[MetadataRecord]:
    """Yield our log's records. Add to `left` each setting not taken over. Raises CannotMove, OSError."""
    yield from feature_records({})
    for topic_id, name in image.topics.items():
        yield TopicRecord(name=name, topic_id=topic_id)
        yield from _topic_configs(image, name, config, left)
        for number in sorted(image.partitions[topic_id]):
            epoch, _ = begun[there[name, number]][-1]
            yield lone_partition(number, topic_id, found.node_id, epoch)
    yield from _other_configs(image, left)
    for table in (image.quotas, image.credentials, image.acls, image.tokens):
        yield from table.values()
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=found.node_id, next_producer_id=image.next_producer_id)


def _begun_epochs(image: ClusterImage, there: Replicas) -> dict[Path, Epochs]:
    """Return the epochs in each partition's directory, and after them the epoch of a new election.

    The new epoch is above all that clients know: they ignore leaders of lower epochs. (When Kafka stops, it
    begins an epoch without a leader.) Raises CannotMove, OSError.
    """
    begun: dict[Path, Epochs] = {}
    for topic, _, record in image.all_partitions():
        path = there[topic, record.partition_id]
        # An import that was killed may have begun an epoch.
        before = [entry for entry in epochs_in(path) if entry[1] != ANY_END]
        latest = max(record.leader_epoch, before[-1][0] if before else 0)
        begun[path] = [*before, (latest + 1, ANY_END)]
    return begun


def _topic_configs(
    image: ClusterImage, topic: str, config: BrokerConfig, left: list[str]
) -> Iterator[ConfigRecord]:
    for name, value in image.configs.get((ConfigResourceType.TOPIC, topic), {}).items():
        try:
            validate(config, {name: value})
        except TopicConfigError as error:
            left.append(f"{name}={value} of the topic {topic}: {error}")
        else:
            yield ConfigRecord(ConfigResourceType.TOPIC, topic, name, value)


def _other_configs(image: ClusterImage, left: list[str]) -> Iterator[ConfigRecord]:
    """Yield the altered settings of brokers, groups and subscriptions to client metrics.

    Add to `left` the names of other settings, without their values, which may be passwords.
    """
    for (kind, resource), configs in sorted(image.configs.items()):
        if kind == ConfigResourceType.TOPIC:
            continue
        good = usable(configs)[0] if kind == ConfigResourceType.BROKER else {}
        if kind in resource_config.KEYS:
            good = {name: value for name, value in configs.items() if name in resource_config.KEYS[kind]}
        for name, value in good.items():
            yield ConfigRecord(kind, resource, name, value)
        whose = (
            ConfigResourceType(kind).name.lower().replace("_", " ")
            if kind in set(ConfigResourceType)
            else str(kind)
        )
        for name in sorted(configs.keys() - good.keys()):
            left.append(f"{name} of the {whose} {resource or '(default)'}: it cannot be altered here")


def _some(entries: Sequence[str]) -> str:
    more = f" and {len(entries) - _EXAMPLES} more" if len(entries) > _EXAMPLES else ""
    return ", ".join(entries[:_EXAMPLES]) + more


# ---- the exchange


def _unused_name(home: Path) -> Path:
    """Return an unused path for Kafka's metadata, so that directories of earlier imports are kept."""
    for number in itertools.count():
        path = home / _stray(b"mpb-import-%05d" % number)
        if not is_there(path):
            return path
    raise AssertionError


def _take_over(
    records: Sequence[MetadataRecord],
    kept: Path,
    found: LogDirs,
    begun: Mapping[Path, Epochs],
    tiered: BucketImport | None,
) -> None:
    """Write our metadata log and epochs; exchange the log with Kafka's metadata, which are then at `kept`.

    Raises CannotMove, OSError. After an error only the files `mpbroker.dirs` and epochs may have changed.
    """
    making = found.home / MAKING
    # A killed import left it.
    if making.exists():
        shutil.rmtree(making)
    check_exchange(making, found.home / PROBE)
    making.mkdir()
    ours = making.stat().st_ino
    try:
        _write(records, making)
        making = making.rename(kept)
        _leave_own_files(found)
        for path, epochs in begun.items():
            write_epochs(path, epochs)
        if tiered is not None:
            tiered.claim()
        exchange(kept, found.metadata)
    except BaseException:
        # If the exchange was done and only its sync failed, Kafka's directory has this name now.
        if making.stat().st_ino == ours:
            shutil.rmtree(making, ignore_errors=True)
        raise
    if tiered is not None:
        tiered.finish()


def _write(records: Sequence[MetadataRecord], making: Path) -> None:
    """Write our metadata log into the directory `making`, durably. Raises OSError."""
    batches = metadata_batches(map(encode_record, records), time.time_ns() // 1_000_000)
    write_log(making, METADATA_TOPIC, 0, METADATA_TOPIC_ID, FIRST, batches)


def _leave_own_files(found: LogDirs) -> None:
    """Remove files of an earlier mpbroker, and write the list of all directories into each directory.

    Without that list, a start with a missing directory would create that directory's partitions again, empty.
    Raises FatalError, OSError.
    """
    for home in found.paths:
        for path in own_files(home):
            path.unlink()
        fsync_directory(home)
    name_all(list(map(str, found.paths)))
