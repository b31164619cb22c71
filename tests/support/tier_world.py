"""A log process that is stepped, a tier beside it, and an object store that outlives both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.metadata import PartitionImage, PartitionSlots, TopicImage
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.table import Partition, read_partition, version_of
from mpbroker.ipc.topology import TIER
from mpbroker.records.batch import checksum
from mpbroker.remote.layout.object_names import parse_object
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.remote.tier.leadership import Leadership
from mpbroker.remote.tier.places import Key, Places
from mpbroker.remote.tier.remote_writer import RemoteWriter
from mpbroker.remote.tier.renewing import Renewing
from mpbroker.remote.tier.tier_store import TierStore
from mpbroker.remote.tier.topics import Topics
from mpbroker.storage.remote_segments import RemoteSegments, read_remote_segments
from tests.support.fault_store import FaultStore, MemoryStore
from tests.support.log_rig import TOPIC_ID, Rig, ensure
from tests.support.log_writer import make_batch
from tests.support.stepped_log import Broker

CLUSTER = "cluster"
SEGMENT_BYTES = 1 << 20
# Two of them do not fit into a segment.
BATCH = bytes(make_batch(3, size=200_000))
RECORDS_PER_SEGMENT = 3


@dataclass
class TierWorld:
    """`partitions` of a tiered topic, each with a log process's files, and a tier."""

    rig: Rig
    partitions: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    memory_store: MemoryStore = field(default_factory=MemoryStore)
    version_of_config: int = 5
    # Partitions of which the newest cut needs what the store has.
    needed: set[Key] = field(default_factory=set)
    # CLOCK_BOOTTIME of the lease.
    now_ns: int = 1_000_000_000_000

    def __post_init__(self) -> None:
        settings = {"segment_bytes": str(SEGMENT_BYTES), "remote_storage_enable": "true", **self.settings}
        self.broker = Broker(self.rig, self.partitions, **settings)
        self.store: ObjectStore = FaultStore(self.memory_store)
        self.topics = Topics()
        self.announce()
        self.context = ProcessContext(TIER, self.rig.memory, self.rig.config)
        # All bytes that ever were in sealed segments, by file.
        self.kept: dict[tuple[int, int], bytes] = {}
        self.again()

    # ---- the log

    def announce(self, *, is_there: bool = True, **configs: str) -> None:
        """Announce the topic, or that there is none."""
        slots = PartitionSlots.of(
            PartitionImage(number, slot, generation)
            for number, (slot, generation, _) in enumerate(self.broker.targets)
        )
        settings = {"remote.storage.enable": "true"} | {
            key.replace("_", "."): value for key, value in configs.items()
        }
        topic = TopicImage("t", TOPIC_ID, slots.packed, settings)
        self.topics.now = {TOPIC_ID: topic} if is_there else {}

    def configure(self, **configs: str) -> None:
        """Change settings of the topic; those that are not named are as they were made."""
        named = {"segment_bytes": str(SEGMENT_BYTES), "remote_storage_enable": "true", **configs}
        self.version_of_config += 1
        message = ensure(self.partitions, **named)
        self.broker.process.manager.ensure(replace(message, config_version=self.version_of_config))
        self.announce(**named)

    def directory(self, partition: int = 0) -> Path:
        return self.rig.directory / f"t-{partition}"

    def slot(self, partition: int = 0) -> int:
        return self.broker.targets[partition][0]

    def entry(self, partition: int = 0) -> Partition:
        return read_partition(self.rig.memory.table(), self.slot(partition))

    def fill(self, segments: int = 3, partition: int = 0, batch: bytes = BATCH) -> None:
        """Seal some segments. The newest one stays open."""
        for _ in range(segments):
            self.broker.produce(batch, partition=partition)
        for path in self.directory(partition).glob("*.log"):
            self.kept[partition, int(path.stem)] = path.read_bytes()

    def segments(self, partition: int = 0) -> list[Path]:
        return sorted(self.directory(partition).glob("*.log"))

    def retain(self) -> None:
        """Let retention look at all partitions once."""
        for _ in self.broker.process.deletion.deleting_expired():
            self.broker.process.work(5)
        self.broker.settle()

    # ---- the tier

    def again(self, store: ObjectStore | None = None, *, delay_ms: int = 3_600_000) -> None:
        """Let the tier be dead and have a successor. `delay_ms`: removed objects are deleted after that."""
        self.store = self.store if store is None else store
        self.memory_store.now_ms += 60_000
        memory, config = self.rig.memory, self.rig.config
        config = replace(
            config, remote_log_manager_task_interval_ms=3_600_000, mpbroker_remote_delete_delay_ms=delay_ms
        )
        places = Places(
            *(memory.table(), memory.sizes.log_workers, config.log_dirs, self.topics),
            lambda topic_id: self.tier.state is not None and topic_id in self.tier.state.topics,
        )
        leadership = Leadership(
            *(memory.leading(), self.context.counters),
            clock_ns=lambda: self.now_ns,
            replicated=lambda ms: memory.words("readable").store(0, ms),
        )
        self.tier = TierStore(
            *(config, CLUSTER, memory.words("remote"), self.context.counters, leadership),
            opened=lambda _url, _timeout_ms: self.store,
        )
        self.writer = RemoteWriter(
            *(config, self.tier, self.topics, places, self.context.counters, leadership),
            cut_needs=lambda key: key in self.needed,
        )
        self.renewing = Renewing(self.tier, leadership, config.mpbroker_remote_lease_ms)

    def turn(self) -> None:
        """Do all that is to be done."""
        self.writer.begin()
        while not self.writer.turn() > 0:
            pass

    def count(self, counter: Counter) -> int:
        return self.context.counters.get(counter)

    @property
    def version(self) -> int:
        """Return the version in the word of partition 0."""
        word = self.rig.memory.words("remote").load(self.slot())
        return version_of(word, self.entry().generation)

    def file(self, partition: int = 0) -> RemoteSegments:
        return read_remote_segments(self.directory(partition))

    # ---- the store

    def state(self) -> RemoteState:
        """Return what the ledger says to somebody who reads it from the beginning."""
        reader = LedgerReader(self.memory_store)
        reader.read_to_end()
        return reader.state

    def added(self, partition: int = 0) -> list[SegmentAdded]:
        return list(self.state().segments_of(TOPIC_ID, partition))

    def data_objects(self) -> set[str]:
        return {name for name in self.memory_store.objects if parse_object(name) is not None}

    def check(self) -> None:
        """Check that the store has what the ledger says, with the bytes that were written, without a gap."""
        state = self.state()
        for partition in range(self.partitions):
            segments = state.segments_of(TOPIC_ID, partition)
            assert self.file(partition) == state.remote_segments(TOPIC_ID, partition)
            for before, after in pairwise(segments):
                assert before.end == after.base
            for one in segments:
                log, indexes, manifest = (self.memory_store.objects[name] for name in one.objects.all)
                assert log == self.kept[partition, one.base]
                assert (len(log), checksum(log), checksum(indexes)) == (
                    one.size,
                    one.log_crc,
                    one.indexes_crc,
                )
                assert manifest

    def names(self, segments: Iterable[SegmentAdded]) -> set[str]:
        return {name for one in segments for name in one.objects.all}


MakeWorld = Callable[..., TierWorld]
