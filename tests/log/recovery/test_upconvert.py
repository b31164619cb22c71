"""A log that began before record batches did: all its records are there, and it goes on as any other."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from mpbroker.config.topic_config import TopicConfig
from mpbroker.inspection.directory import open_directory
from mpbroker.inspection.findings import Severity
from mpbroker.inspection.partition import check as check_partition
from mpbroker.inspection.repair import CannotRepair, plan
from mpbroker.log.format import names
from mpbroker.log.format.checkpoints import write_whole
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery import upconvert
from mpbroker.log.recovery.log_loader import Known, PartitionDamaged, load
from mpbroker.records.batch import CURRENT_MAGIC, LAST_OFFSET_DELTA_AT, MAGIC_AT, assign_offset_and_epoch
from mpbroker.records.compression import Codec
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import Record
from tests.log.conftest import T0, TOPIC_ID, make_batch
from tests.log.recovery.test_log_loader import offsets_in
from tests.support.record_reading import iterate_records

OLD_TIME = 1_400_000_000_000
CLEAN, UNCLEAN = Known(clean=True), Known(clean=False)
TIMES = [-1] * 30 + [OLD_TIME + offset for offset in range(30, 70)]


def messages(magic: int, codec: Codec, first: int, count: int) -> bytes:
    """As a broker has them; a compressed message has the offset of the last one in it."""
    builder = LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)
    for number in range(count):
        inner = number if magic and codec else first + number
        builder.append(
            inner, OLD_TIME + first + number if magic else None, b"%d" % (first + number), b"v" * 100
        )
    data = builder.build()
    if codec:
        data[:8] = (first + count - 1).to_bytes(8, "big")
    return bytes(data)


@pytest.fixture
def old(writer: Callable[..., object]) -> Path:
    """Of three segments: [0, 30) of magic 0, [30, 60) of magic 1, [60, 80) half of it of today's."""
    directory = writer().log.directory  # type: ignore[attr-defined]
    segments = {
        0: messages(0, Codec.NONE, 0, 20) + messages(0, Codec.GZIP, 20, 10),
        30: messages(1, Codec.SNAPPY, 30, 10)
        + messages(1, Codec.NONE, 40, 5)
        + messages(1, Codec.LZ4, 45, 15),
        60: messages(1, Codec.NONE, 60, 10),
    }
    for first in (70, 75):
        batch = make_batch(5)
        assign_offset_and_epoch(batch, first, 0)
        segments[60] += bytes(batch)
    for base, data in segments.items():
        (directory / names.segment_name(base)).write_bytes(data)
    for path in directory.glob("*index"):
        path.unlink()
    return Path(directory)


@pytest.fixture
def reopen(topic_config: Callable[..., TopicConfig]) -> Callable[..., PartitionLog]:
    def build(directory: Path, known: Known) -> PartitionLog:
        return load(directory, "t", 0, TOPIC_ID, topic_config(), known, str)

    return build


def records_in(directory: Path) -> list[Record]:
    found = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        assert all(batch.bytes[MAGIC_AT] == CURRENT_MAGIC for batch in iterate_batches(data))
        found += list(iterate_records(data))
    return found


def check(log: PartitionLog) -> None:
    assert log.state.log_end == 80
    assert offsets_in(log) == list(range(80))
    records = records_in(log.directory)
    assert [one.offset for one in records] == list(range(80))
    assert [one.timestamp for one in records[:70]] == TIMES
    assert [one.key for one in records[:70]] == [b"%d" % offset for offset in range(70)]
    assert records[70].timestamp == T0
    assert not list(log.directory.glob("*.swap")) + list(log.directory.glob("*.cleaned"))


@pytest.mark.parametrize(
    "known",
    [CLEAN, UNCLEAN, Known(clean=False, recovery_point=65, durable=65), Known(True, 80, 80)],
)
@pytest.mark.parametrize("has_indexes", [True, False])
def test_nothing_of_it_is_lost(
    old: Path, reopen: Callable[..., PartitionLog], known: Known, has_indexes: bool
) -> None:
    if has_indexes:
        for base in (0, 30, 60):
            for suffix in (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX):
                (old / names.segment_name(base, suffix)).touch()
    log = reopen(old, known)
    check(log)
    log.close_cleanly()
    before = {path.name: path.stat().st_ino for path in old.iterdir()}
    check(reopen(old, CLEAN))
    assert {path.name: path.stat().st_ino for path in old.iterdir()} == before, "it is done once"


def test_a_torn_end_is_cut_and_damage_is_not(old: Path, reopen: Callable[..., PartitionLog]) -> None:
    last = old / names.segment_name(60)
    one = messages(1, Codec.NONE, 60, 1)
    last.write_bytes(messages(1, Codec.NONE, 60, 3) + one[:-1])
    copy = old.with_name("t-1")
    shutil.copytree(old, copy)
    log = reopen(old, UNCLEAN)
    assert (log.state.log_end, offsets_in(log)) == (63, list(range(63)))
    with pytest.raises(PartitionDamaged, match="nothing is cut"):
        reopen(copy, Known(clean=False, durable=64))
    assert (copy / names.segment_name(60)).read_bytes().endswith(one[:-1])


@pytest.mark.parametrize("step", range(12))
def test_killed_or_without_room_at_any_step_it_is_done_again(
    old: Path, reopen: Callable[..., PartitionLog], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    left = [step]

    def counted(real):  # type: ignore[no-untyped-def]
        def call(*arguments: object, **more: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **more)

        return call

    with monkeypatch.context() as disk:
        for name in ("rename", "link", "unlink", "fsync"):
            disk.setattr(os, name, counted(getattr(os, name)))
        for name in ("rename", "unlink"):
            disk.setattr(Path, name, counted(getattr(Path, name)))
        disk.setattr(upconvert, "_convert", counted(upconvert._convert))
        with pytest.raises(OSError, match="No space left"):
            reopen(old, UNCLEAN)
    check(reopen(old, UNCLEAN))


def far(message: bytes, to: int) -> bytes:
    """Offsets are not covered by the CRC."""
    return to.to_bytes(8, "big") + message[8:]


def beyond(first: int, last: int) -> bytes:
    batch = make_batch(1)
    assign_offset_and_epoch(batch, first, 0)
    batch[LAST_OFFSET_DELTA_AT : LAST_OFFSET_DELTA_AT + 4] = (last - first).to_bytes(4)
    return bytes(batch)


@pytest.mark.parametrize(
    "end",
    [
        far(messages(0, Codec.NONE, 29, 1), 1 << 20),
        far(messages(1, Codec.GZIP, 20, 10), 45),
        beyond(29, 1 << 20),
    ],
    ids=["message", "compressed", "batch"],
)
@pytest.mark.parametrize("known", [CLEAN, UNCLEAN])
def test_a_segment_that_seems_to_reach_over_others_does_not_remove_them(
    old: Path, reopen: Callable[..., PartitionLog], known: Known, end: bytes
) -> None:
    (old / names.segment_name(0)).write_bytes(messages(0, Codec.NONE, 0, 20) + end)
    before = {path.name: path.read_bytes() for path in old.glob("*.log*")}
    for _ in range(2):
        with pytest.raises(PartitionDamaged, match="behind the beginning of the next segment, 30"):
            reopen(old, known)
        assert {path.name: path.read_bytes() for path in old.glob("*.log*")} == before


def test_an_offset_that_is_out_of_order_is_damage(old: Path, reopen: Callable[..., PartitionLog]) -> None:
    one = messages(0, Codec.NONE, 10, 1)
    data = messages(0, Codec.NONE, 0, 10) + far(one, 25) + messages(0, Codec.NONE, 11, 19)
    (old / names.segment_name(0)).write_bytes(data)
    with pytest.raises(PartitionDamaged, match="out of order"):
        reopen(old, CLEAN)


def test_segments_of_today_are_not_copied(
    old: Path, reopen: Callable[..., PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(30)
    assign_offset_and_epoch(batch, 30, 0)
    (old / names.segment_name(30)).write_bytes(batch)
    made = []
    real = Path.open

    def opened(path: Path, mode: str = "r", **more: Any) -> object:
        made.extend([path.name[: names.OFFSET_DIGITS]] if "w" in mode else [])
        return real(path, mode, **more)

    monkeypatch.setattr(Path, "open", opened)
    assert reopen(old, UNCLEAN).state.log_end == 80
    assert [int(base) for base in made] == [0, 60]
    assert len(records_in(old)) == 80


def test_a_disk_that_cannot_be_read_is_an_error(
    old: Path, reopen: Callable[..., PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a map it would end the process, and the next one."""
    real = os.pread

    def pread(fd: int, count: int, position: int) -> bytes:
        if count > names.OFFSET_DIGITS:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, count, position)

    with monkeypatch.context() as disk:
        disk.setattr(os, "pread", pread)
        with pytest.raises(OSError, match="Input/output error"):
            reopen(old, UNCLEAN)
    check(reopen(old, UNCLEAN))


def test_segments_are_as_old_as_before(old: Path, reopen: Callable[..., PartitionLog]) -> None:
    """Retention goes by that where messages have no timestamps."""
    for path in old.glob("*.log"):
        os.utime(path, (OLD_TIME // 1000, OLD_TIME // 1000))
    check(reopen(old, UNCLEAN))
    assert {path.stat().st_mtime for path in old.glob("*.log")} == {OLD_TIME / 1000}


def test_without_room_nothing_is_begun(
    old: Path, reopen: Callable[..., PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again and again, beside all that the log worker does."""
    before = sorted(old.iterdir())
    with monkeypatch.context() as disk:
        disk.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
        disk.setattr(upconvert, "_convert", pytest.fail)
        with pytest.raises(
            OSError, match=r"No space left on device to make .* needed, 0 MiB are free"
        ) as raised:
            reopen(old, UNCLEAN)
    assert raised.value.errno == errno.ENOSPC
    assert sorted(old.iterdir()) == before
    check(reopen(old, UNCLEAN))


def test_what_is_behind_damage_is_not_taken_for_messages(tmp_path: Path) -> None:
    """Pieces of it may begin with what looks like one."""
    one = messages(1, Codec.NONE, 0, 1)
    torn = messages(1, Codec.NONE, 1, 1)[:-1]
    behind = torn + b"x" * (upconvert.PIECE_BYTES - len(torn)) + messages(1, Codec.NONE, 2, 1)
    path = tmp_path / names.segment_name(0)
    path.write_bytes(one + behind)
    assert upconvert.upconvert(tmp_path, [0])
    assert path.read_bytes().endswith(behind)


def test_tools_tell_it_from_damage(old: Path, reopen: Callable[..., PartitionLog]) -> None:
    """A repair would take it for such, and drop it."""
    write_whole(old.parent / names.META_PROPERTIES, b"version=1\ncluster.id=c\nnode.id=0\n")

    def severities() -> set[Severity]:
        (partition,) = open_directory(old.parent).partitions
        check_partition(partition)
        return {one.severity for one in partition.all_findings}

    assert severities() == {Severity.DERIVED}
    flipped = bytearray((old / names.segment_name(60)).read_bytes())
    flipped[-1] ^= 1
    (old / names.segment_name(60)).write_bytes(flipped)
    with pytest.raises(CannotRepair, match="has messages of an old format"):
        plan(old)
    flipped[-1] ^= 1
    (old / names.segment_name(60)).write_bytes(flipped)
    reopen(old, UNCLEAN).close_cleanly()
    assert severities() == set()
