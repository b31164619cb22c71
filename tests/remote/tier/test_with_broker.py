"""A broker whose segments go to a directory: uploads, restarts, and kills of its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from mpbroker.records.batch import checksum
from mpbroker.remote.layout.object_names import parse_object
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.storage.remote_segments import read_remote_segments
from mpbroker.testing import Broker
from tests.support.client_tools import eventually
from tests.support.http_broker import pids, replace
from tests.support.produced import produce
from tests.support.tier_world import objects_of

TOPIC = "orders"
VALUE_BYTES = 100_000
# Of two segments and the beginning of a third.
RECORDS = 25


class TieredBroker:
    """A broker with a tiered topic, and the directory that is its object store."""

    def __init__(self, broker: Broker, store: Path) -> None:
        self.broker = broker
        self.store = DirectoryStore(store)
        self.written = 0

    @property
    def directory(self) -> Path:
        return self.broker.log_dir / f"{TOPIC}-0"

    def produce(self) -> None:
        produce(self.broker.bootstrap_servers, TOPIC, [os.urandom(VALUE_BYTES) for _ in range(RECORDS)])
        self.written += RECORDS

    def state(self) -> RemoteState:
        reader = LedgerReader(self.store)
        reader.read_to_end()
        return reader.state

    def added(self) -> list[SegmentAdded]:
        return [one for segments in self.state().segments.values() for one in segments]

    def sealed(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))[:-1]

    def settle(self) -> list[SegmentAdded]:
        """Wait until all sealed segments are in the ledger and in the partition's file; return them."""
        wanted = [int(path.stem) for path in self.sealed()]
        eventually(
            lambda: [one.base for one in read_remote_segments(self.directory)] == wanted,
            "all sealed segments are uploaded",
        )
        return self.added()

    def check(self) -> None:
        """Check that the store has all sealed segments, once, and beside them only what nobody names."""
        added = self.settle()
        assert [one.base for one in added] == [int(path.stem) for path in self.sealed()]
        assert all(before.end == after.base for before, after in pairwise(added))
        for one in added:
            log, indexes, manifest = (self.store.get(name) for name in objects_of(one).all)
            assert log == (self.directory / f"{one.base:020d}.log").read_bytes()
            assert (checksum(log), checksum(indexes)) == (one.log_crc, one.indexes_crc)
            assert manifest
        ids = {one.segment_id for one in added}
        found = [objects for info in self.store.list("") if (objects := parse_object(info.name)) is not None]
        named = [objects for objects in found if objects.segment_id in ids]
        assert len(named) == 3 * len(ids)


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[TieredBroker]:
    store = tmp_path / "store"
    store.mkdir()
    settings = {
        "remote.log.storage.system.enable": "true",
        "mpbroker.remote.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": "20",
        "mpbroker.remote.commit.interval.ms": "10",
    }
    with Broker(settings=settings) as broker:
        broker.create_topic(TOPIC, 1, {"remote.storage.enable": "true", "segment.bytes": "1048576"})
        yield TieredBroker(broker, store)


def test_sealed_segments_are_uploaded_and_a_restart_goes_on(tiered: TieredBroker) -> None:
    tiered.produce()
    tiered.check()
    assert len(tiered.added()) == 2
    tiered.broker.stop(keep=True)
    tiered.broker.start()
    tiered.produce()
    tiered.check()
    assert len(tiered.added()) > 3


@pytest.mark.parametrize("name", ["tier", "log 0", "coordinator", "handler 0"])
def test_whoever_is_killed_no_segment_is_lost_or_there_twice(tiered: TieredBroker, name: str) -> None:
    tiered.produce()
    for _ in range(2):
        replace(tiered.broker, name)
        tiered.produce()
    tiered.check()
    assert len(tiered.added()) >= tiered.written * VALUE_BYTES // (1 << 20) - 1


def test_a_kill_of_the_whole_broker_leaves_what_a_start_continues(tiered: TieredBroker) -> None:
    tiered.produce()
    tiered.broker.kill()
    tiered.broker.start()
    tiered.produce()
    tiered.check()


def test_without_the_setting_there_is_no_tier(tmp_path: Path) -> None:
    with Broker(log_dir=tmp_path) as broker:
        assert "tier" not in pids(broker)
