"""Imports an object store: mpbroker goes on with segments that Kafka and Aiven's plug-in wrote.

Kafka's topic `__remote_log_metadata` says which segments there are, their manifests how they are stored. They
enter the ledger under their names, and no object is copied. One entry has all changes, and makes the imported
broker the ledger's owner. It is written before the log directories change hands. Run a killed import again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from mpbroker.migration.bucket_export import Bucket, check_epochs, remove_topic
from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.log_dirs import LogDirs, Replicas, epochs_in
from mpbroker.migration.segment_records import (
    SEGMENTS_TOPIC,
    CopiedSegment,
    finished_segments,
    in_offset_order,
)
from mpbroker.migration.snapshot_files import remove_snapshots
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.wire import MalformedMessage
from mpbroker.records.batch import checksum
from mpbroker.records.errors import CorruptBatch
from mpbroker.remote.layout.manifest import ManifestRefused, decode_manifest
from mpbroker.remote.layout.object_names import parse_object
from mpbroker.remote.ledger.claim import new_claim, settle
from mpbroker.remote.ledger.entries import FORMAT, PREFIX, LedgerDamaged, entry_name
from mpbroker.remote.ledger.events import (
    CutsRemoved,
    Event,
    Exported,
    SegmentAdded,
    SegmentsRemoved,
    Started,
    TakenOver,
    TopicDeleted,
    TopicRestored,
    TopicSet,
)
from mpbroker.remote.ledger.owner import OwnerDamaged, read_owner
from mpbroker.remote.ledger.reader import FORMAT_NAME, READERS, Format, LedgerReader, read_entries
from mpbroker.remote.ledger.state import EventRefused, segments_file
from mpbroker.remote.restore.take_over import TakenLedger, write_owner
from mpbroker.remote.store.object_store import ObjectMissing
from mpbroker.remote.store.self_test import check_store
from mpbroker.remote.tier.collector import orphans
from mpbroker.storage import names
from mpbroker.storage.remote_segments import write_remote_segments
from mpbroker.storage.segments import batches_of, segments_of
from mpbroker.storage.strict_stat import is_there

Key = tuple[bytes, int]
_REPAIR: Final = "Start Kafka on the directories again, and repair the topic there"
_COPY: Final = "Start Kafka on the directories again, copy the topic with MirrorMaker, and delete it"


class BucketImport:
    """Takes the store of a stopped Kafka: `check`, `claim`, and `finish` when the directories are mpbroker's.

    `count` is the number of segments that Kafka has in the store.
    """

    def __init__(self, bucket: Bucket, found: LogDirs) -> None:
        self._bucket = bucket
        self._store = bucket.store
        self._found = found
        self._reader = LedgerReader(bucket.store)
        self._events: list[Event] = []
        self._paths: dict[Key, Path] = {}
        self.count = 0

    def take_back(self, *, is_dry: bool) -> None:
        """Take back what was exported, if no Kafka was started on it.

        Raises CannotMove, StoreError, StoreUnfit, OSError.
        """
        self._read_ledger()
        if self._reader.last is None:
            raise CannotMove(f"{self._found.home} is mpbroker's already: start mpbroker on it")
        self._check_exported()
        self.count = sum(map(len, self._reader.state.segments.values()))
        # By the store's clock, as those of the others.
        exported = next(iter(self._store.list(PREFIX, entry_name(self._reader.seq - 1))))
        for one in orphans(self._store, self._reader.state):
            if one.modified_ms > exported.modified_ms:
                raise CannotMove(
                    f"{self._bucket.url}: {one.name} is younger than the export: a Kafka has used other "
                    "directories than these. Import those"
                )
        if not is_dry:
            self._events = [self._taken()]
            self.claim()
            remove_snapshots(self._found.metadata)
            self.finish()

    def check(self, image: ClusterImage, there: Replicas) -> None:
        """Read Kafka's records, and the manifests of segments that the ledger lacks.

        Raises CannotMove, StoreError, OSError.
        """
        self._read_ledger()
        state = self._reader.state
        copied = self._copied(image, there)
        self.count = sum(map(len, copied.values()))
        topics = {topic_id: name for topic_id, name in image.topics.items() if name != SEGMENTS_TOPIC}
        self._check_prefix(topics)
        known = {one.segment_id for segments in state.segments.values() for one in segments}
        with ThreadPoolExecutor(READERS) as readers:
            lacking = (one for some in copied.values() for one in some)
            new = list(
                readers.map(self._added, (one for one in lacking if one.objects.segment_id not in known))
            )
        self._events = [self._taken()]
        if state.cuts or state.bundles:
            # A restore from what was before Kafka would lose what Kafka has written.
            cut_ids = tuple(one.event.cut_id for one in state.cuts)
            self._events.append(CutsRemoved(cut_ids, tuple(state.bundles)))
        for topic_id in dict.fromkeys(one.topic_id for one in new):
            topic = state.topics.get(topic_id)
            if topic is None:
                settings = image.configs.get((ConfigResourceType.TOPIC, topics[topic_id]), {})
                count = len(image.partitions[topic_id])
                self._events.append(TopicSet(topics[topic_id], topic_id, count, settings))
            elif topic.deleted_ms is not None:
                self._events.append(TopicRestored(topic_id))
        live = {one.topic_id for one in state.topics.values() if one.deleted_ms is None}
        self._events += map(TopicDeleted, sorted(live - topics.keys()))
        for key, segments in state.segments.items():
            kept = {one.objects.segment_id for one in copied.get(key, ())}
            gone = tuple(one.segment_id for one in segments if one.segment_id not in kept)
            if gone and key[0] in live | topics.keys():
                self._events.append(SegmentsRemoved(*key, gone))
        self._events += new
        self._paths = {
            (topic_id, number): there[name, number]
            for topic_id, name in topics.items()
            for number in image.partitions[topic_id]
        }

    def claim(self) -> None:
        """Have the ledger name this broker as the owner, with Kafka's segments; write the broker's files.

        Raises CannotMove, StoreError, StoreUnfit, OSError.
        """
        store, reader = self._store, self._reader
        check_store(store)
        if reader.last is None:
            store.create(FORMAT_NAME, msgspec.json.encode(Format(FORMAT, self._found.cluster_id)))
        seq = reader.seq
        try:
            claim = new_claim(reader, self._events)
            is_owner = settle(reader, claim)
        except (LedgerDamaged, EventRefused) as error:
            raise CannotMove(f"{self._bucket.url}: {error}") from error
        if not is_owner:
            raise CannotMove(f"{self._bucket.url}: another one has written entry {seq + 1}: import again")
        for key, path in self._paths.items():
            segments = reader.state.segments_of(*key)
            if segments or is_there(path / names.REMOTE_SEGMENTS):
                write_remote_segments(path, segments_file(segments))
        homes = [path for path in self._found.paths if is_there(path / names.REMOTE_OWNER)]
        write_owner((homes or self._found.paths)[0], TakenLedger(claim.writer, claim.seq))

    def finish(self) -> None:
        """Remove Kafka's records of segments: the ledger has them. Raises OSError."""
        remove_topic(self._found)

    def _check_prefix(self, topics: Container[bytes]) -> None:
        """Check that all segments are of this cluster: the tier deletes those that its ledger lacks."""
        state = self._reader.state
        former = {one.segment.topic_id for one in state.removed.values()} | state.topics.keys()
        for found in self._store.list(""):
            objects = parse_object(found.name)
            if objects is not None and objects.topic_id not in topics and objects.topic_id not in former:
                raise CannotMove(
                    f"{self._bucket.url}: {found.name} is of a topic that this Kafka does not have. If "
                    "another cluster writes there, give each a prefix of its own first; if none does, delete "
                    "the object"
                )

    def _check_exported(self) -> None:
        """Check that the ledger had got nothing from other directories than these before the export."""
        try:
            owners = [owner for path in self._found.paths if (owner := read_owner(path)) is not None]
        except OwnerDamaged as error:
            raise CannotMove(str(error)) from error
        reader = self._reader
        since = [] if len(owners) != 1 else list(read_entries(self._store, owners[0].last_seq, reader.seq))
        is_owner = bool(since) and since[0].header.owner == owners[0].nonce
        later = [event for entry in since[1:] for event in entry.events]
        if not is_owner or not all(isinstance(one, Started | Exported | TakenOver) for one in later):
            raise CannotMove(
                f"{', '.join(map(str, self._found.paths))}: other directories were exported with "
                f"{self._bucket.url}, or these are an older copy. Import those"
            )

    def _taken(self) -> TakenOver:
        who = self._found.cluster_id, self._found.node_id, socket.gethostname()
        return TakenOver(*who, cut_id=b"", imported=True)

    def _read_ledger(self) -> None:
        """Read the ledger, and check that it may be claimed."""
        reader, url = self._reader, self._bucket.url
        try:
            found = reader.read_format()
            reader.read_to_end()
        except LedgerDamaged as error:
            raise CannotMove(f"{url}: {error}") from error
        if found is not None and found.cluster_id != self._found.cluster_id:
            raise CannotMove(
                f"{url} is of the cluster {found.cluster_id}, the directories of {self._found.cluster_id}"
            )
        state = reader.state
        was_killed = isinstance(state.leader, TakenOver) and state.leader.imported
        if reader.last is not None and state.exported is None and not was_killed:
            raise CannotMove(
                f"{url} belongs to a broker of mpbroker, and was not exported: start that, or name the "
                "prefix that Kafka's plug-in uses"
            )

    def _copied(self, image: ClusterImage, there: Replicas) -> Mapping[Key, list[CopiedSegment]]:
        """Return Kafka's segments of each partition, by offset."""
        numbers = sorted(number for topic, number in there if topic == SEGMENTS_TOPIC)
        if not numbers:
            raise CannotMove(
                f"{self._found.metadata} has no topic {SEGMENTS_TOPIC}: an import needs the records of "
                "Kafka's TopicBasedRemoteLogMetadataManager"
            )
        grouped: dict[Key, list[CopiedSegment]] = {}
        for number in numbers:
            path = there[SEGMENTS_TOPIC, number]
            try:
                for one in finished_segments(_values(path)):
                    grouped.setdefault((one.objects.topic_id, one.objects.partition), []).append(one)
            except (MalformedMessage, CorruptBatch) as error:
                raise CannotMove(f"{path}: {error}. {_REPAIR}") from error
        found: dict[Key, list[CopiedSegment]] = {}
        for key, segments in grouped.items():
            home = there.get((image.topics.get(key[0], ""), key[1]))
            if home is None:
                # Kafka deletes the segments of a topic with it, and may have been stopped before that.
                continue
            try:
                found[key] = in_offset_order(segments)
            except ValueError as error:
                raise CannotMove(
                    f"{home}: {error}. Kafka served one of them for the offsets of both. {_COPY}"
                ) from error
            check_epochs(
                home, epochs_in(home), ((one.objects.base, one.end, one.epochs) for one in found[key])
            )
        return found

    def _added(self, one: CopiedSegment) -> SegmentAdded:
        """Return the event of a segment. Raises CannotMove, StoreError."""
        objects = one.objects
        try:
            size, parts = decode_manifest(self._store.get(objects.manifest))
            indexes = self._store.get(objects.indexes)
            log_size = self._store.size(objects.log)
        except ManifestRefused as error:
            raise CannotMove(f"{self._bucket.url}: {objects.manifest}: {error}. {_COPY}") from error
        except ObjectMissing as error:
            raise CannotMove(
                f"{self._bucket.url}: {error}. Kafka's records name its segment. {_COPY}"
            ) from error
        if not size == log_size == one.size or len(indexes) != sum(parts):
            raise CannotMove(
                f"{self._bucket.url}: {objects.log} has {log_size} bytes and its indexes {len(indexes)}; "
                f"Kafka's records say {one.size}, and its manifest {size} and {sum(parts)}. {_COPY}"
            )
        return SegmentAdded(
            topic_id=objects.topic_id,
            partition=objects.partition,
            topic=objects.topic,
            segment_id=objects.segment_id,
            base=objects.base,
            end=one.end,
            size=size,
            largest_ms=one.largest_ms,
            epochs=one.epochs,
            index_sizes=parts,
            has_aborted=bool(parts.transactions),
            log_crc=None,
            indexes_crc=checksum(indexes),
        )


def _values(partition: Path) -> Iterator[bytes]:
    """Yield the values of a partition's records. Raises CorruptBatch, OSError."""
    for base in segments_of(partition):
        with (partition / names.segment_name(base)).open("rb") as file:
            for batch in batches_of(file, os.fstat(file.fileno()).st_size):
                if not batch.is_control:
                    yield from (bytes(record.value or b"") for record in batch.records())
