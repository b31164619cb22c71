"""What tests of the log share: topic settings, batches, a partition that is appended to without a process."""

from __future__ import annotations

import errno
import gc
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig, resolve
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from tests.support.log_node import Journaled, Node, nodes
from tests.support.log_rig import Rig

# In the future, so that no producer has expired.
T0 = 4_000_000_000_000
TOPIC_ID = bytes(range(16))


def make_batch(
    count: int = 1, *, timestamp: int = T0, size: int = 20, producer: tuple[int, int, int] | None = None
) -> bytearray:
    """A batch of `count` records of `size` value bytes; producer is (id, epoch, base sequence)."""
    records = [NewRecord(key=None, value=bytes(size), timestamp=timestamp + i) for i in range(count)]
    if producer is None:
        return build_batch(records, leader_epoch=0)
    producer_id, epoch, sequence = producer
    return build_batch(
        records, leader_epoch=0, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


class Writer:
    """Appends as the log process does, but for everything around it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log

    def append(
        self,
        count: int = 1,
        *,
        timestamp: int = T0,
        size: int = 20,
        producer: tuple[int, int, int] | None = None,
    ) -> int:
        """Returns the base offset."""
        state = self.log.state
        data = make_batch(count, timestamp=timestamp, size=size, producer=producer)
        base = state.log_end
        if state.roll_due(base + count - 1, len(data), timestamp + count - 1, T0):
            for fd in self.log.roll():
                os.close(fd)
        assign_offset_and_epoch(data, base, 0)
        os.pwrite(state.fd, data, state.size)
        state.note_batch(base + count - 1, state.size, len(data), timestamp + count - 1)
        if producer is not None:
            state.producers.update(producer[0], producer[1], producer[2], count, base, timestamp + count - 1)
        return base


@pytest.fixture
def batch() -> Callable[..., bytearray]:
    return make_batch


@pytest.fixture
def topic_config() -> Callable[..., TopicConfig]:
    def build(**overrides: str) -> TopicConfig:
        return resolve(BrokerConfig(), {key.replace("_", "."): value for key, value in overrides.items()})

    return build


@pytest.fixture
def writer(tmp_path: Path, topic_config: Callable[..., TopicConfig]) -> Callable[..., Writer]:
    def build(**overrides: str) -> Writer:
        return Writer(PartitionLog.create(tmp_path / "t-0", "t", 0, TOPIC_ID, topic_config(**overrides)))

    return build


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []
    public = Path(tempfile.mkdtemp(dir="/dev/shm"))

    def build(name: str = "data", **options: object) -> Rig:
        (tmp_path / name).mkdir(exist_ok=True)
        made.append(Rig(tmp_path / name, public / f"region{len(made)}", options))
        return made[-1]

    yield build
    for one in made:
        one.close()
    public.rmdir()


@pytest.fixture
def node(rig: Callable[..., Rig], tmp_path: Path) -> Iterator[Callable[..., Node]]:
    yield from nodes(Node, rig, tmp_path)


@pytest.fixture
def journaled(rig: Callable[..., Rig], tmp_path: Path) -> Iterator[Callable[..., Journaled]]:
    yield from nodes(Journaled, rig, tmp_path)


class Syncs:
    """Instead of a file system; counts, and fails at the call with that number."""

    def __init__(self, *, is_synced_at_once: bool = True, fails_at: int = 0) -> None:
        self.is_synced_at_once = is_synced_at_once
        self.fails_at = fails_at
        self.elsewhere: set[int] = set()  # inodes
        self.count = 0

    def has(self, path: Path | str | int) -> bool:
        return os.stat(path).st_ino not in self.elsewhere  # noqa: PTH116 - it may be a descriptor

    def sync(self) -> None:
        self.count += 1
        if self.count == self.fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture(autouse=True)
def _files_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Closes segment files that a test leaves open in its directory.

    A log process closes its files by ending; logs in the process of the tests would keep them, until other
    tests get descriptors that select() cannot take, and hang (py4j's callbacks do).
    """
    if "tmp_path" not in request.fixturenames:
        yield
        return
    own = re.compile(re.escape(str(request.getfixturevalue("tmp_path"))) + r"/.*/\d{20}\.\w+( \(deleted\))?")
    yield
    fds = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    left = [fd for fd in fds if own.fullmatch(_target(fd))]
    if left:
        # Whatever would still close one of them does so before its number is somebody else's.
        gc.collect()
        for fd in left:
            if own.fullmatch(_target(fd)):
                os.close(fd)


def _target(fd: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except FileNotFoundError:
        return ""
