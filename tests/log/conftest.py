"""What tests of the log share: topic settings, batches, a partition that is appended to without a process."""

from __future__ import annotations

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
from tests.support.crash_checks import built_tracer
from tests.support.log_node import Journaled, Node, nodes
from tests.support.log_rig import Rig
from tests.support.log_writer import TOPIC_ID, Writer, make_batch


@pytest.fixture(scope="module")
def tracer() -> Iterator[Path]:
    with built_tracer() as library:
        yield library


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
