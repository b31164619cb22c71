"""A log process that is given random work and says what it promised: run by itself, under the tracer.

    TRACE_ROOT=… TRACE_FILE=… LD_PRELOAD=… python -m tests.support.crash_workload DIR SEED [KIND] [STEPS]

DIR/data0 is the log directory. KIND `several`: each start has another number of log workers. `moving`:
it has two log directories, between which partitions move. `stopping`: it is stopped all the time, STEPS
times. Between what the trace says of files stand marks, each a JSON list:

    ["topic", topic id]                              that of the topic from now on
    ["sent", topic id, partition, CRC]               a batch is on its way
    ["acked", topic id, partition, CRC, offset]      it is answered, and was to be durable then
    ["appended", topic id, partition, CRC, offset]   it is answered without that
    ["visible", topic id, partition, offset]         readers are shown what lies below
    ["removed", topic id]                            nothing of the topic is promised any more
    ["stopping"], ["stopped"]                        a clean stop, from beginning to end
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from mpbroker.ipc import calls, topology
from mpbroker.log.append.turn_journals import release_journals
from mpbroker.log.partition.producer_snapshots import submit_snapshot
from mpbroker.log.process import LogProcess
from mpbroker.records.batch import CRC_AT
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import NewRecord
from mpbroker.records.validation import at_once
from mpbroker.storage.checkpoints import fsync_directory
from mpbroker.storage.names import log_worker_of
from tests.support.log_node import Node, wait_for_io
from tests.support.log_rig import Rig, end
from tests.support.polling import until
from tests.support.several_log_workers import Several, SeveralRig
from tests.support.stepped_log import settle

PARTITIONS = 4
STEPS = 220
STOPS = 12
OPTIONS = {"log_journal_bytes": 72 << 10, "log_journal_direct_bytes": 4_000}
SEGMENT_BYTES = 24_000
SIZES = (30, 30, 300, 3_000, 6_000)
PRODUCERS = 3
TIMESTAMP_MS = 4_000_000_000_000

_trace_mark = ctypes.CDLL(None).trace_mark


def mark(*what: object) -> None:
    data = json.dumps(what).encode()
    _trace_mark(data, len(data))


class Workload:
    def __init__(self, directory: Path, public: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.public = public
        self.rigs: list[Rig] = []
        self.node = self.make_node(directory)
        self.batches = 0
        self.new_topic()
        self.boot()

    def make_node(self, directory: Path):  # type: ignore[no-untyped-def]
        return Node(self.make_rig, directory)

    def make_rig(self, _: str, **options: object) -> Rig:
        self.close_rigs()
        self.rigs = [Rig(self.node.dirs[0], self.public / f"region{self.batches}", {**OPTIONS, **options})]
        return self.rigs[0]

    def close_rigs(self) -> None:
        while self.rigs:
            self.rigs.pop().close()

    def boot(self) -> None:
        self.node.boot()
        # Where one of several workers dies, the others still answer what they have.
        self.on_the_way: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        self.open()

    def new_topic(self) -> None:
        self.topic = calls.EnsureTopic("t", self.random.randbytes(16), list(range(PARTITIONS)), {}, 5)
        self.shown = [0] * PARTITIONS
        mark("topic", self.topic.topic_id.hex())

    def open(self) -> None:
        self.targets = self.node.open(self.topic)
        assert [target.error for target in self.targets] == [0] * PARTITIONS
        logs = {slot: log for process in self.processes for slot, log in process.manager.logs.items()}
        for process in self.processes:
            process.turn.for_tests(offered_bytes=0)
        for target in self.targets:
            log = logs[target.slot]
            log.apply_config(msgspec.structs.replace(log.config, segment_bytes=SEGMENT_BYTES))

    # ---- what happens ----

    def run(self, steps: int = STEPS) -> None:
        for step in range(steps):
            self.do_some(step)
        self.settle()
        self.take_replies()
        self.show()
        self.node.crash()
        self.close_rigs()

    def do_some(self, step: int) -> None:
        self.produce()
        if self.random.random() < 0.3:
            # Not waited for, what comes next is offered behind the round that is under way.
            for process in self.processes:
                process.work(self.random.choice((0, 1)))
                process.manager.journals.use()
        else:
            self.settle()
        self.take_replies()
        self.show()
        for process in self.processes:
            process.manager.open_partitions.ease()
        if step % 4 == 3:
            self.something_else()

    @property
    def processes(self) -> list[LogProcess]:
        return [self.process]

    def among(self, _: int) -> list[int]:
        """The partitions that may be in one job with this one."""
        return list(range(PARTITIONS))

    def settle(self) -> None:
        for process in self.processes:
            settle(process)

    @property
    def process(self):  # type: ignore[no-untyped-def]
        return self.node.process

    def produce(self) -> None:
        rig = self.node.rig
        for _ in range(self.random.choice((1, 1, 2, 4))):
            batches, named = [], []
            among = self.among(self.random.randrange(PARTITIONS))
            for _ in range(self.random.choice((1, 1, 2, 6))):
                partition = self.random.choice(among)
                self.batches += 1
                data = self.make_batch()
                crc = int.from_bytes(data[CRC_AT : CRC_AT + 4], "big")
                target = self.targets[partition]
                batches.append(((target.slot, target.slot_generation, 5), data))
                named.append((partition, crc))
                mark("sent", self.topic.topic_id.hex(), partition, crc)
            acks = self.random.choice((-1, -1, 1))
            self.on_the_way[rig.job(batches, acks=acks)] = (acks, named)

    def make_batch(self) -> bytes:
        """Some of transactions, and markers of their ends, also where none is open."""
        chance, producer = self.random.random(), self.random.randrange(PRODUCERS)
        if chance < 0.15:
            marker = build_transaction_marker(
                ABORT if chance < 0.1 else COMMIT,
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=TIMESTAMP_MS,
            )
            return bytes(marker)
        value = self.batches.to_bytes(8, "big") + bytes(self.random.choice(SIZES))
        records = [NewRecord(value, timestamp=TIMESTAMP_MS)] * self.random.choice((1, 1, 3))
        if chance >= 0.5:
            return bytes(build_batch(records, leader_epoch=0))
        of = {"producer_id": producer, "producer_epoch": 0}
        return bytes(build_batch(records, leader_epoch=0, transactional=True, **of))

    def take_replies(self) -> None:
        for reply in self.node.rig.replies():
            acks, named = self.on_the_way.pop(reply.request)
            for (partition, crc), result in zip(named, reply.results, strict=True):
                assert result.error == 0
                said = "acked" if acks == -1 else "appended"
                mark(said, self.topic.topic_id.hex(), partition, crc, result.base_offset)

    def show(self) -> None:
        for partition, target in enumerate(self.targets):
            offset = self.node.rig.partition(target.slot).high_watermark
            assert offset >= self.shown[partition]
            if offset > self.shown[partition]:
                self.shown[partition] = offset
                mark("visible", self.topic.topic_id.hex(), partition, offset)

    def something_else(self) -> None:
        chosen = self.random.random()
        if chosen < 0.25:
            self.node.checkpoint()
        elif chosen < 0.3:
            self.snapshot()
        elif chosen < 0.35:
            release_journals(self.process.turn)
        elif chosen < 0.42:
            self.replace_topic()
        elif chosen < 0.48:
            self.node.succeed()
            self.open()
        elif chosen < 0.54:
            self.boot()
        elif chosen < 0.58:
            self.settle()
            self.take_replies()
            self.show()
            self.node.stop()
            self.boot()

    def snapshot(self) -> None:
        """Take a snapshot as it is done between rolls, also of what is not on disk yet."""
        for process in self.processes:
            for target in self.targets:
                log = process.manager.logs.get(target.slot)
                if log is not None and log.state.fd >= 0:
                    submit_snapshot(log, process.manager.io_thread)
            wait_for_io(process)

    def replace_topic(self) -> None:
        self.settle()
        self.take_replies()
        mark("removed", self.topic.topic_id.hex())
        for process in self.processes:
            at_once(process.manager.removing("t", self.topic.topic_id, process.replica_mover.topic_goes()))
            process.manager.removal.deletions.begin_due(time.monotonic() + 1e6)
        self.new_topic()
        self.open()


class SeveralNode(Node):
    """As many log workers as each start likes; what is done to `process` is done to one of them."""

    def __init__(self, chance: random.Random, make: Callable[..., Rig], directory: Path) -> None:
        super().__init__(make, directory)
        self.chance = chance
        self.several: Several | None = None

    def boot(self, **options: object) -> LogProcess:
        self.crash()
        made = self.make(self.dirs[0].name, log_dirs=(str(self.dirs[0]),), **options)
        assert isinstance(made, SeveralRig)
        self.rig, self.several = made, Several(made)
        return self.choose()

    def choose(self) -> LogProcess:
        assert self.several is not None
        self._process = self.chance.choice(self.several.processes)
        return self.process

    def succeed(self) -> LogProcess:
        """One of them dies."""
        assert self.several is not None
        number = self.process.worker.number
        end(self.process)
        self.rig.memory.reset_rings_of(topology.log_worker(number))
        self.rig.bind()
        assert isinstance(self.rig, SeveralRig)
        self.several.processes[number] = self.rig.start_worker(number, incarnation=2)
        return self.choose()

    def crash(self) -> None:
        if self.several is not None:
            self.several.crash()
        self.several = self._process = None

    def stop(self) -> None:
        assert self.several is not None
        self.several.stop()
        self.several = self._process = None

    def open(self, topic: calls.EnsureTopic) -> list[calls.EnsuredPartition]:
        assert self.several is not None
        return self.several.open(topic)


class SeveralWorkload(Workload):
    """The same work for several log workers, whose journals and checkpoints lie in one directory."""

    def make_node(self, directory: Path) -> Node:
        return SeveralNode(self.random, self.make_rig, directory)

    def make_rig(self, _: str, **options: object) -> Rig:
        self.close_rigs()
        public = self.public / f"region{self.batches}"
        workers = self.random.choice((1, 2, 3))
        self.rigs = [SeveralRig(self.node.dirs[0], public, {**OPTIONS, **options}, workers)]
        return self.rigs[0]

    @property
    def processes(self) -> list[LogProcess]:
        return self.node.several.processes

    def among(self, partition: int) -> list[int]:
        """A job is for one worker."""
        count = self.node.rig.workers
        owner = log_worker_of("t", partition, count)
        return [p for p in range(PARTITIONS) if log_worker_of("t", p, count) == owner]

    def something_else(self) -> None:
        self.node.choose()
        super().something_else()


class MovingWorkload(Workload):
    """The same work while partitions move from one log directory to the other, and back."""

    def make_node(self, directory: Path) -> Node:
        (directory / "data0").mkdir()
        made = Node(self.make_rig, directory / "data0", 2)
        # Mount points are there for certain.
        fsync_directory(directory / "data0")
        return made

    def open(self) -> None:
        super().open()
        self.process.replica_mover.resume(["t"])

    def produce(self) -> None:
        super().produce()
        for _ in range(self.random.choice((0, 1, 3))):
            self.process.work(1)
            self.process.advance_tasks()

    def step(self) -> None:
        self.process.work(1)
        self.process.advance_tasks()

    def settle(self) -> None:
        until(lambda: self.process.turn.is_settled, "the turn settles", self.step)

    def something_else(self) -> None:
        if self.random.random() < 0.5:
            partition = self.random.randrange(PARTITIONS)
            one = calls.MovePartition("t", partition, self.topic.topic_id, self.random.randrange(2))
            for _ in self.process.replica_mover.ordering(calls.MovePartitions([one])):
                pass
        if self.random.random() < 0.4:
            until(lambda: self.process.replica_mover.is_at_rest, "the move ends", self.step)
        if self.random.random() < 0.3:
            self.process.manager.removal.deletions.begin_due(time.monotonic() + 1e6)
            self.process.manager.checkpoints.write_stale()
        super().something_else()


class StoppingWorkload(Workload):
    """Some work, then a clean stop, again and again."""

    def run(self, stops: int = STOPS) -> None:
        for _ in range(stops):
            for _ in range(self.random.choice((1, 3, 8))):
                self.produce()
                if self.random.random() < 0.3:
                    self.node.checkpoint()
            self.settle()
            self.take_replies()
            self.show()
            mark("stopping")
            self.node.stop()
            mark("stopped")
            self.boot()
        self.node.crash()
        self.close_rigs()


KINDS = {"several": SeveralWorkload, "moving": MovingWorkload, "stopping": StoppingWorkload}


def main() -> None:
    directory, seed = Path(sys.argv[1]), int(sys.argv[2])
    how = sys.argv[3:]
    kind = next((KINDS[word] for word in how if word in KINDS), Workload)
    steps = [int(word) for word in how if word.isdigit()]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as public:
        kind(directory, Path(public), seed).run(*steps)


if __name__ == "__main__":
    main()
