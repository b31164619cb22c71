"""Readers of partitions that a handler keeps: no more than it has descriptors for."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from mpbroker.handlers.fetch import partition_readers
from mpbroker.handlers.fetch.partition_readers import (
    FILES_PER_READER,
    OPEN_PARTITIONS,
    SPARE_DESCRIPTORS,
    Readers,
)
from mpbroker.ipc.table import Partition
from mpbroker.storage.reader import PartitionReader
from shm.procfs import descriptors_left
from tests.handlers.test_deleted_files import partition_of

GIVEN = 3


class _Counted(PartitionReader):
    is_open = 0

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        _Counted.is_open += 1

    def close(self) -> None:
        super().close()
        _Counted.is_open -= 1


@pytest.mark.parametrize(
    ("left", "most"),
    [
        (SPARE_DESCRIPTORS + 2 * GIVEN * FILES_PER_READER, GIVEN),
        (0, 1),
        (SPARE_DESCRIPTORS + 10 * OPEN_PARTITIONS * FILES_PER_READER, OPEN_PARTITIONS),
    ],
)
def test_readers_share_what_descriptors_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, most: int
) -> None:
    monkeypatch.setattr(partition_readers, "descriptors_left", lambda: left)
    monkeypatch.setattr(_Counted, "is_open", 0)
    readers = Readers([str(tmp_path)], _Counted)
    partitions: list[Partition] = [partition_of(number, tmp_path) for number in range(OPEN_PARTITIONS + 2)]
    for partition in partitions:
        readers.get("t", partition)
    assert _Counted.is_open == most
    readers.forget_all()
    assert _Counted.is_open == 0


def test_a_file_that_is_open_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors_left()
    with (tmp_path / "file").open("w"):
        assert descriptors_left() == before - 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert descriptors_left() > 1 << 29
