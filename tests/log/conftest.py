"""What tests of the log share: topic settings, batches, a partition that is appended to without a process."""

from __future__ import annotations

import gc
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.log.partition.partition_log import PartitionLog
from tests.support.crash_checks import built_tracer
from tests.support.log_node import Journaled, MakeJournaled, MakeNode, Node, fill, nodes
from tests.support.log_rig import MakeRig, Rig
from tests.support.log_writer import TOPIC_ID, MakeWriter, Writer, topic_config
from tests.support.stepped_log import Broker


@pytest.fixture(scope="module")
def tracer() -> Iterator[Path]:
    with built_tracer() as library:
        yield library


@pytest.fixture
def writer(tmp_path: Path) -> MakeWriter:
    def build(**overrides: str) -> Writer:
        return Writer(PartitionLog.create(tmp_path / "t-0", "t", 0, TOPIC_ID, topic_config(**overrides)))

    return build


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MakeRig]:
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
def node(rig: MakeRig, tmp_path: Path) -> Iterator[MakeNode]:
    yield from nodes(Node, rig, tmp_path)


@pytest.fixture
def n(node: MakeNode) -> Node:
    """A broker of one log directory that has started."""
    made = node()
    made.boot()
    return made


@pytest.fixture
def b(rig: MakeRig) -> Broker:
    """A log process that is stepped by hand, and its topic of one partition."""
    return Broker(rig())


@pytest.fixture
def journaled(rig: MakeRig, tmp_path: Path) -> Iterator[MakeJournaled]:
    yield from nodes(Journaled, rig, tmp_path)


@pytest.fixture
def filled(journaled: MakeJournaled) -> MakeJournaled:
    """Start a broker that has four batches, ten records, in each of so many partitions."""

    def make(partitions: int = 3) -> Journaled:
        made = journaled()
        made.boot()
        fill(made, partitions=partitions)
        return made

    return make


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
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - of hundreds after each test
    except FileNotFoundError:
        return ""
