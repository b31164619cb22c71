"""Reading a coordinator's topic, when that is given up in between and begun anew, or its files move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from mpbroker.coordinator.groups.records import GroupKey, GroupValue
from mpbroker.coordinator.groups.records import encode as encode_group
from mpbroker.coordinator.runtime import loading
from mpbroker.coordinator.runtime.loading import Contents, Loader
from mpbroker.coordinator.transactions.records import TransactionState, TransactionValue
from mpbroker.coordinator.transactions.records import encode as encode_transaction
from mpbroker.ipc.metadata import PartitionImage
from mpbroker.ipc.table import PAYLOAD_BYTES, Partition, PartitionFlag, unpack_partition
from mpbroker.records.builder import build_batch
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.records.record import NewRecord
from shm.table import SlotTable
from tests.support import group_rig, transaction_rig

LONG, OTHER = 1, 0
"""A partition with two batches, of which the first is read twice, and one without any."""


class Log:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, key: bytes, value: bytes | None) -> None:
        record = bytes(build_batch([NewRecord(value, key, 0)]))
        tombstone = bytes(build_batch([NewRecord(None, key, 0)]))
        self._batches = {LONG: [*iterate_batches(record), *iterate_batches(tombstone)], OTHER: []}
        monkeypatch.setattr(loading, "read_partition", self._read_partition)
        monkeypatch.setattr(loading, "batches_below", lambda _directory, end: self._below(end))

    def _read_partition(self, _table: SlotTable, slot: int) -> Partition:
        empty = unpack_partition(bytes(PAYLOAD_BYTES))
        return empty._replace(partition=slot, generation=1, flags=PartitionFlag.PARTITION_LIVE)

    def _below(self, end: Partition) -> Iterator[Batch]:
        return iter(self._batches[end.partition])

    def loader(self, contents: Contents, *partitions: int) -> Loader:
        images = [PartitionImage(number, number, 1) for number in partitions]
        return Loader("topic", "", contents, cast(SlotTable, None), ("/",), images)

    def read_with_a_death(self, contents: Contents, reopen: Callable[[], None]) -> None:
        """The log process dies when the first batch is read. All is read anew, in another order."""
        self.loader(contents, LONG, OTHER).step()
        reopen()
        loader = self.loader(contents, OTHER, LONG)
        while not loader.done:
            assert loader.step()


def test_a_group_that_is_deleted_is_not_found_in_a_reading_that_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = group_rig.GroupRig()
    value = GroupValue("consumer", 3, None, None, 0, ())
    log = Log(monkeypatch, *encode_group((GroupKey("g"), value)))

    def reopen() -> None:
        rig.coordinator.unload()
        rig.coordinator.partitions.open(group_rig.PARTITIONS)

    log.read_with_a_death(rig.coordinator.contents, reopen)
    assert rig.coordinator.manager.groups == {}


def test_a_transactional_id_that_is_deleted_is_not_found_in_a_reading_that_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = transaction_rig.TransactionRig()
    value = TransactionValue(7, 0, 1000, TransactionState.PREPARE_COMMIT, frozenset({("t", 0)}), 0)
    log = Log(monkeypatch, *encode_transaction(("x", value)))

    def reopen() -> None:
        rig.coordinator.unload()
        rig.coordinator.partitions.open(transaction_rig.PARTITIONS)

    log.read_with_a_death(rig.coordinator.contents, reopen)
    assert len(rig.coordinator.state) == 0
    assert rig.sending == []


class Taken:
    """Contents that keep the batches of the last reading."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.ended: list[int] = []
        self.failed: list[int] = []

    def begin(self) -> None:
        self.batches.clear()

    def read(self, partition: int, batch: Batch) -> None:  # noqa: ARG002
        self.batches.append(batch)

    def end(self, end: Partition) -> None:
        self.ended.append(end.partition)

    def fail(self, partition: int) -> None:
        self.failed.append(partition)


def segment(directory: Path, base: int, data: bytes) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{base:020}.log").write_bytes(data)


@pytest.mark.parametrize("moves", [True, False])
def test_a_partition_without_its_files_has_moved_or_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    """Check that it does not count as empty: all offsets that groups have committed would be gone."""
    data = bytes(build_batch([NewRecord(b"value", b"key", 0)]))
    segment(tmp_path / "1" / "topic-0", 0, data)
    before = unpack_partition(bytes(PAYLOAD_BYTES))._replace(
        generation=1,
        flags=PartitionFlag.PARTITION_LIVE,
        high_watermark=1,
        high_watermark_position=len(data),
        log_end_offset=1,
    )
    seen = [before]
    monkeypatch.setattr(loading, "read_partition", lambda *_: seen.pop() if len(seen) > 1 else seen[0])
    if moves:
        # The table names the other directory from the second look on.
        seen.insert(0, before._replace(log_dir=1))
    taken, log_dirs = Taken(), (str(tmp_path / "0"), str(tmp_path / "1"))
    loader = Loader("topic", "", taken, cast(SlotTable, None), log_dirs, [PartitionImage(0, 0, 1)])
    while not loader.done:
        loader.step()
    assert (taken.ended, taken.failed) == (([0], []) if moves else ([], [0]))
    assert len(taken.batches) == moves
