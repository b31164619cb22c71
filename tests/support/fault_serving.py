"""What goes on beside appends while reads fail: readers, the scrubber, the cleaner, retention, moves.

Each takes a scenario of `fault_workload` that has appended, does what it is about with the second directory
failing, and raises Broken where the other one is concerned, or what fails is taken for something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.topology import CLEANER, SCRUBBER
from mpbroker.log.compaction.cleaner_process import CleanerProcess
from mpbroker.log.process import LogProcess
from mpbroker.log.scrub.scrub_process import ASKED, ScrubProcess
from mpbroker.storage.names import partition_name
from mpbroker.storage.reader import Bound, PartitionReader
from tests.support.log_node import wait_for_io
from tests.support.polling import PATIENCE_S
from tests.support.stepped_log import settle

if TYPE_CHECKING:
    from tests.support.fault_workload import Scenario

SLICE_BYTES = 5_000
T = TypeVar("T")


class Broken(Exception):
    """A promise."""


def finished(process: LogProcess, steps: Generator[None, None, T]) -> T:
    """Step by step; then what failed has been told."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            settle(process)
            process._take_failures()
            return cast("T", end.value)
        wait_for_io(process)


# ---- readers


def lookups(scenario: Scenario, number: int) -> Iterator[Callable[[PartitionReader], Any]]:
    """Return all that fetches, ListOffsets and OffsetForLeaderEpoch find in a partition."""
    now = scenario.node.rig.partition(scenario.targets[number].slot)
    bound = Bound(now.high_watermark, now.high_watermark_segment, now.high_watermark_position)

    def fetch(offset: int) -> Callable[[PartitionReader], Any]:
        def look(reader: PartitionReader) -> Any:
            piece = reader.fetch_slice(offset, SLICE_BYTES, bound)
            return piece and (piece, reader.read(piece))

        return look

    yield from map(fetch, range(now.log_start_offset, now.high_watermark))
    yield lambda reader: reader.max_timestamp(bound, now.log_start_offset)
    yield lambda reader: reader.find_timestamp(1, now.log_start_offset, bound)
    yield lambda reader: reader.epochs()


def read(scenario: Scenario, fail: Callable[[], None]) -> None:
    """Read everything, and check that it is the same, or an error of the disk."""
    looks = [(number, look) for number in range(len(scenario.targets)) for look in lookups(scenario, number)]

    def found(number: int, look: Callable[[PartitionReader], Any]) -> Any:
        log_dir = scenario.node.dirs[scenario.in_second(number)]
        with closing(PartitionReader(log_dir / partition_name("t", number))) as reader:
            return look(reader)

    expected = [found(*one) for one in looks]
    fail()
    for (number, look), before in zip(looks, expected, strict=True):
        try:
            now = found(number, look)
        except OSError as error:
            if not scenario.in_second(number):
                raise Broken(f"t-{number} in the other directory cannot be read: {error}") from error
        else:
            if now != before:
                raise Broken(f"t-{number}: something else is found: {str(now)[:200]}")


# ---- the scrubber


def scrub(scenario: Scenario, fail: Callable[[], None]) -> None:
    """Scrub, and check that unreadable parts are reported, and no damage once they can be read."""
    rig = scenario.node.rig
    process = ScrubProcess(ProcessContext(SCRUBBER, rig.memory, rig.config))
    process.start()
    words = rig.memory.words("scrub_asked")

    def scrub_all() -> list[int]:
        words.store(ASKED, words.load(ASKED) + 1)
        while (log_dir := process._due()) is not None:
            process.scrub(log_dir)
        return [len(log_dir.known.all_damages()) for log_dir in process.dirs]

    fail()
    if scrub_all()[0]:
        raise Broken("damage is found in the other directory")
    scenario.works_again()
    if any(scrub_all()) or any(process.damaged.load(target.slot) for target in scenario.targets):
        raise Broken("damage is left where there was none")


# ---- the cleaner


class InProcess(CleanerProcess):
    """Asks the log worker without a ring in between."""

    def __init__(self, scenario: Scenario) -> None:
        rig, process = scenario.node.rig, scenario.node.process
        super().__init__(ProcessContext(CLEANER, rig.memory, rig.config))
        self.log_process = process
        self.cleaned: list[str] = []
        self.logs[0].is_up = True

    def _asked(self, message: calls.Message) -> calls.Message:
        process = self.log_process
        if isinstance(message, calls.FindToClean):
            return finished(process, process.compaction.choosing())
        if isinstance(message, calls.SwapSegments):
            return finished(process, process.compaction.swapping(message))
        assert isinstance(message, calls.CleaningEnded)
        process.compaction.ended(message)
        settle(process)
        process._take_failures()
        return message

    def _report(self, task: calls.ToClean, *more: Any) -> None:
        self.cleaned.append(task.directory)
        super()._report(task, *more)


def clean(scenario: Scenario, fail: Callable[[], None]) -> None:
    """A disk that fails is not held against a partition, and others are cleaned. What only the journal has on
    disk is not cleaned: so they were closed before.
    """
    scenario.node.stop()
    scenario.start()
    cleaner = InProcess(scenario)
    fail()
    for _ in range(2 * len(scenario.targets)):
        cleaner.clean_one()
    for number in range(len(scenario.targets)):
        path = scenario.node.dirs[0] / partition_name("t", number)
        if not scenario.in_second(number) and str(path) not in cleaner.cleaned:
            raise Broken(f"{path} is not cleaned")
    counters = cleaner.log_process.context.counters
    if counters.get(Counter.COUNT_UNCLEANABLE_PARTITIONS):
        raise Broken("a partition is not cleaned any more")


# ---- retention


def retain(scenario: Scenario, fail: Callable[[], None]) -> None:
    """After a start nothing is known of sealed segments. Records are of the future here, files are not."""
    scenario.node.crash()
    scenario.start()
    process = scenario.node.process
    fail()
    finished(process, process.deletion.deleting_expired())


# ---- moves


def move(scenario: Scenario, fail: Callable[[], None]) -> None:
    """Move the partition from the directory that fails to the other one."""
    process = scenario.node.process
    number = next(filter(scenario.in_second, range(len(scenario.targets))))
    topic_id = scenario.node.rig.partition(scenario.targets[number].slot).topic_id
    fail()
    order = calls.MovePartitions([calls.MovePartition("t", number, topic_id, 0)])
    finished(process, process.replica_mover.ordering(order))
    deadline = time.monotonic() + PATIENCE_S
    while not process.replica_mover.is_at_rest:
        if time.monotonic() > deadline:
            raise Broken("the move never ends")
        process.work(1)
        process.advance_tasks()
        process._do_housekeeping()


SERVING = {"read": read, "scrub": scrub, "clean": clean, "retain": retain, "move": move}
# Beside those of all tests.
CONFIGS = {
    "clean": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    "retain": {"retention.ms": "1"},
}
