"""The same log from other places: a container, a read-only mount, a copy.

What can be read is read whole; what cannot be read is an error, never fewer records.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mpbroker.storage.checkpoints import read_offsets
from mpbroker.storage.names import HIGH_WATERMARKS
from ops.bench.brokers import ROOT, Mpbroker
from tests.support.polling import until
from tests.support.produced import produce
from tests.support.programs import ran
from tests.support.real_brokers import create_topic, served
from tests.support.spark_cluster import contained, may_unshare

TOPIC = "places"
PARTITIONS = 2
RECORDS = 1_000
CHECKPOINTS_OFTEN = ("-o", "replica.high.watermark.checkpoint.interval.ms=100")
ALL = {str(number): list(range(RECORDS // PARTITIONS)) for number in range(PARTITIONS)}
NEEDS_NAMESPACES = pytest.mark.skipif(
    not may_unshare(), reason="mounts and process ids of its own take namespaces: only root has them"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path_factory.mktemp("broker"), flags=CHECKPOINTS_OFTEN)) as running:
        create_topic(running.bootstrap, TOPIC, PARTITIONS)
        produce(running.bootstrap, TOPIC, map(str, range(RECORDS)), PARTITIONS)
        yield running


def read(prefix: Sequence[str], options: Mapping[str, str]) -> dict[str, Any]:
    """What a reader says that runs behind the prefix."""
    asked = json.dumps({"subscribe": TOPIC, **options})
    done = ran([*prefix, sys.executable, "-m", "tests.reading.read_all", asked], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def copy(broker: Mpbroker, tmp_path: Path) -> Path:
    """Of the log directory while the broker runs, with all records, and with the pointer to that broker."""
    ends = {(TOPIC, number): RECORDS // PARTITIONS for number in range(PARTITIONS)}
    until(lambda: read_offsets(broker.log_dir / HIGH_WATERMARKS).items() >= ends.items(), "the checkpoint")
    return Path(shutil.copytree(broker.log_dir, tmp_path / "copy"))


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    place = tmp_path / "mounted"
    place.mkdir()
    return place


@NEEDS_NAMESPACES
def test_a_container_beside_the_running_broker(broker: Mpbroker, mounted: Path) -> None:
    """It sees the broker's memory but none of its processes."""
    prefix = contained(broker.log_dir, at=mounted)
    assert read(prefix, {"log.dir": str(mounted)}) == {"offsets": ALL}


@NEEDS_NAMESPACES
def test_a_container_without_the_brokers_memory(broker: Mpbroker, mounted: Path) -> None:
    """What the files say by themselves is older than what was acknowledged: no answer is better than that."""
    prefix = [*contained(broker.log_dir, at=mounted), "unshare", "--mount", "--"]
    prefix += ["sh", "-ec", f'mount -t tmpfs none "{broker.runtime_dir}"\nexec "$@"', "sh"]
    found = read(prefix, {"log.dir": str(mounted)})
    assert found.get("error") == "FilesUnavailable"
    assert "kafka.bootstrap.servers" in found["text"]
    options = {"log.dir": str(mounted), "kafka.bootstrap.servers": broker.bootstrap}
    assert read(prefix, options) == {"offsets": ALL}


@NEEDS_NAMESPACES
def test_a_read_only_mount_of_a_copy(copy: Path, mounted: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert read(contained(copy, at=mounted), {"log.dir": str(mounted)}) == {"offsets": ALL}
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before
