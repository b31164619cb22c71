"""A log process and a tier with a directory as object store, traced: run by itself, under the tracer.

    TRACE_ROOT=… TRACE_FILE=… LD_PRELOAD=… python -m tests.support.tier_crash_workload DIR SEED STEPS

DIR/disk has the log directory (`data`) and the store (`store`). Marks, each a JSON list:

    ["acked", topic id, partition, CRC, offset]      a batch is answered, and was to be durable then
    ["entry", number]                                the ledger has this entry, and the tier goes by it
    ["cut", [end of partition 0, …]]                 the ledger has a cut of logs up to there
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import msgspec

from mpbroker.records.batch import CRC_AT
from mpbroker.remote.cuts.cutter import Cutter
from mpbroker.remote.cuts.instant import Broker, Rows
from mpbroker.remote.restore.offline import bring_forward
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.tier.cutting import Cutting
from mpbroker.storage.checkpoints import fsync_directory
from tests.support.crash_workload import mark
from tests.support.cut_world import instants_of
from tests.support.log_rig import TOPIC_ID, Rig
from tests.support.log_writer import make_batch
from tests.support.tier_world import TierWorld

PARTITIONS = 2
SEGMENT_BYTES = 20_000
SIZES = (50, 500, 5_000)
OPTIONS = {"remote_log_storage_system_enable": True, "log_journal_bytes": 72 << 10}


class Workload:
    """Produces, uploads, deletes what the store has, makes cuts, and lets the tier die."""

    def __init__(self, disk: Path, public: Path, seed: int) -> None:
        for name in ("data", "store"):
            (disk / name).mkdir(parents=True)
        # Mount points are there for certain.
        fsync_directory(disk)
        self.chance = random.Random(seed)
        self.store = DirectoryStore(disk / "store")
        self.world = TierWorld(Rig(disk / "data", public / "region", dict(OPTIONS)), PARTITIONS)
        self.world.configure(local_retention_bytes="1")
        for partition in range(PARTITIONS):
            log = self.world.broker.log(partition)
            log.apply_config(msgspec.structs.replace(log.config, segment_bytes=SEGMENT_BYTES))
        self.begin_tier()

    def begin_tier(self) -> None:
        world = self.world
        world.again(self.store)
        memory = world.rig.memory
        rows = Rows(memory.table(), memory.sizes.log_workers, lambda: {TOPIC_ID: "t"})
        broker = Broker([world.rig.directory], rows)
        # Each cut lets the one before go.
        config = msgspec.structs.replace(world.rig.config, mpbroker_remote_checkpoint_retention_ms=0)
        self.cutting = Cutting(
            *(config, world.tier, world.context.counters),
            lambda store, paced: Cutter(
                store, broker, ("cluster", 1), instants_of(broker), paced, bring_forward
            ),
        )
        world.writer.begin()
        self.tell()

    def tell(self) -> None:
        assert self.world.tier.book is not None
        mark("entry", self.world.tier.book.ledger.seq)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.produce()
            chosen = self.chance.random()
            if chosen < 0.3:
                self.world.turn()
            elif chosen < 0.4:
                self.world.retain()
            elif chosen < 0.5:
                self.cut()
            elif chosen < 0.55:
                self.begin_tier()
            self.tell()
        self.world.broker.close()
        self.world.rig.close()

    def produce(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        data = bytes(make_batch(self.chance.choice((1, 3)), size=self.chance.choice(SIZES)))
        (result,) = self.world.broker.produce(data, partition=partition)
        assert result.error == 0
        crc = int.from_bytes(data[CRC_AT : CRC_AT + 4], "big")
        mark("acked", TOPIC_ID.hex(), partition, crc, result.base_offset)

    def cut(self) -> None:
        ends = [self.world.broker.log(partition).state.log_end for partition in range(PARTITIONS)]
        self.cutting.turn()
        mark("cut", ends)


def main() -> None:
    directory, seed, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory(dir="/dev/shm") as public:
        Workload(directory / "disk", Path(public), seed).run(steps)


if __name__ == "__main__":
    main()
