"""An object store that gets a log directory's segments and cuts when a test says so, without a broker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from mpbroker.ipc.table import Partition, pack_partition
from mpbroker.remote.cuts.cutter import Cut, Cutter
from mpbroker.remote.cuts.files import Row
from mpbroker.remote.cuts.instant import Broker, Rows
from mpbroker.remote.ledger.claim import new_claim, settle
from mpbroker.remote.ledger.events import CutsRemoved, Event, Exported, SegmentAdded, TakenOver, TopicSet
from mpbroker.remote.restore.offline import bring_forward
from mpbroker.remote.restore.plan import make_plan
from mpbroker.remote.restore.take_over import TakenLedger, take_over, take_over_events, write_owner
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.remote.tier.backlog import Candidate, Sealed
from mpbroker.remote.tier.places import Place
from mpbroker.remote.tier.removal import of_partition
from mpbroker.remote.tier.uploader import Uploader
from mpbroker.storage.names import partition_name
from mpbroker.storage.segments import segments_of
from tests.support.cut_world import instants_of
from tests.support.ledger_parts import STARTED, ledger_of, read


class BucketWorld:
    """The store at `url`, below `root`. `published` has what the broker says of partitions, by directory."""

    def __init__(self, log_dir: Path, root: Path) -> None:
        self.log_dir = log_dir
        self.directory = root / "store"
        self.directory.mkdir()
        self.url = f"file://{self.directory}"
        self.store: ObjectStore = DirectoryStore(self.directory)
        self.published: dict[str, Partition] = {}
        # Whether the broker is stopped for a cut while it writes what it publishes.
        self.is_writing = False
        self._owner = root
        self.again()

    def again(self) -> None:
        """Let a tier begin, as that of a new broker or of a restored one."""
        self.ledger = ledger_of(self.store, self._owner)
        self.ledger.start(STARTED)
        broker = Broker([self.log_dir], _Rows(self))
        self._cutter = Cutter(
            self.store, broker, ("cluster", 1), instants_of(broker), lambda _count: None, bring_forward
        )

    def publish(self, topic: str, partition: Partition) -> None:
        """Note what the broker says of a partition now."""
        self.published[partition_name(topic, partition.partition)] = partition

    def upload(self, topic: str, now: Partition) -> list[SegmentAdded]:
        """Bring the sealed segments below the last stable offset into the store, as the tier does."""
        self.publish(topic, now)
        directory = self.log_dir / partition_name(topic, now.partition)
        place = Place(
            *(0, now.generation, topic, now.topic_id, now.partition, directory, now.flags),
            *(now.log_start_offset, now.high_watermark_segment, now.high_watermark, now.last_stable_offset),
        )
        key = now.topic_id, now.partition
        sealed_end = max((one.end for one in self.ledger.state.segments_of(*key)), default=0)
        if now.topic_id not in self.ledger.state.topics:
            self.ledger.append([TopicSet(topic, now.topic_id, 1, {})])
        self.ledger.append(list(of_partition(self.ledger.state, place)))
        added = []
        for base, end in pairwise(segments_of(directory)):
            if max(sealed_end, place.log_start) < end <= place.stable and base >= sealed_end:
                size = os.stat(directory / f"{base:020d}.log").st_size  # noqa: PTH116
                added.append(self._uploader.upload(Candidate(place, Sealed(base, end, size, 0))))
        self.ledger.append(added)
        return added

    @property
    def _uploader(self) -> Uploader:
        return Uploader(self.store, cast(Any, _Places()), 1, lambda _count: None)

    def cut(self) -> Cut:
        """Make a cut of what there is, as was published last."""
        cut = self._cutter.make(self.ledger.state)
        self.ledger.append([cut.event(self.ledger.state, self.ledger.seq)])
        self._cutter.published(cut)
        return cut

    def restore(self, before_ms: int | None = None) -> None:
        """Have a restored broker take the ledger over. Its log directory is that of before."""
        _, taken = take_over(lambda: make_plan(self.store, before_ms), is_forced=True)
        write_owner(self._owner, taken)
        self.again()

    def stand_in(self) -> None:
        """Have a standby take the ledger over, as `restore` does it."""
        plan = make_plan(self.store)
        taken = TakenOver("cluster", 2, "there", plan.cut.cut_id, by_standby=True)
        self._claim(take_over_events(plan, taken))

    def to_kafka_and_back(self) -> None:
        """Export the ledger and import it, as mpbroker.migration does."""
        self.ledger.append([Exported("cluster", 1, "here")])
        taken = TakenOver("cluster", 1, "here", cut_id=b"", imported=True)
        cut_ids = tuple(one.event.cut_id for one in self.ledger.state.cuts)
        self._claim([taken, CutsRemoved(cut_ids, tuple(self.ledger.state.bundles))])

    def _claim(self, events: Sequence[Event]) -> None:
        reader = read(self.store)
        claim = new_claim(reader, events)
        assert settle(reader, claim)
        write_owner(self._owner, TakenLedger(claim.writer, claim.seq))
        self.again()


class _Places:
    """Nothing is deleted or moved while it is uploaded."""

    def is_current(self, _place: Place) -> bool:
        return True


class _Rows(Rows):
    """The rows of published partitions."""

    def __init__(self, world: BucketWorld) -> None:
        self._world = world

    def all(self) -> dict[str, Row]:
        return {
            f"0/{name}": Row(slot, pack_partition(one), one.topic_id, one.partition)
            for slot, (name, one) in enumerate(self._world.published.items())
        }

    def payload(self, slot: int) -> bytes | None:
        return None if self._world.is_writing else [*self.all().values()][slot].payload
