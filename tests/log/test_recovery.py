"""Opening what a stop, clean or not, left: truncations, bit flips, missing files, rolls, damage."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.config.topic_config import TopicConfig
from mpbroker.log import names
from mpbroker.log.partition_log import PartitionLog, segments_of
from mpbroker.log.reader import Bound, PartitionReader
from mpbroker.log.recovery import Known, PartitionDamaged, load
from mpbroker.records.iterate import iterate_records

T0 = 4_000_000_000_000
UNCLEAN = Known(clean=False)
CLEAN = Known(clean=True)
SMALL = {"segment.bytes": "1048576", "index.interval.bytes": "200"}


@pytest.fixture
def reopen(topic_config: Callable[..., TopicConfig]) -> Callable[..., PartitionLog]:
    def build(directory: Path, known: Known) -> PartitionLog:
        said: list[str] = []
        return load(
            directory, "t", 0, bytes(range(16)), topic_config(index_interval_bytes="200"), known, said.append
        )

    return build


def offsets_in(log: PartitionLog) -> list[int]:
    """Everything up to the log end, through the reader."""
    bound = Bound(log.state.log_end, log.state.segment_base, log.state.size)
    reader = PartitionReader(log.directory)
    offset, found = log.log_start, []
    while (piece := reader.fetch_slice(offset, 1 << 20, bound)) is not None:
        found += [record.offset for record in iterate_records(reader.read(piece)) if record.offset >= offset]
        offset = found[-1] + 1
    reader.close()
    return found


def test_clean_stop_is_trusted_and_goes_on(writer, reopen) -> None:  # type: ignore[no-untyped-def]
    w = writer(index_interval_bytes="200")
    for i in range(20):
        w.append(2, producer=(7, 0, 2 * i))
    w.log.close_cleanly()
    again = reopen(w.log.directory, CLEAN)
    assert again.state.log_end == 40
    assert offsets_in(again) == list(range(40))
    assert again.state.producers.check(7, 0, 38, 2) == (-1, 38, T0 + 1)
    assert again.state.producers.check(7, 0, 40, 1)[0] == 0


def test_a_segment_that_just_began_gets_its_name_on_disk(writer, reopen, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    w = writer()
    w.append(3)
    for fd in w.log.roll():
        os.close(fd)
    synced: list[Path] = []
    monkeypatch.setattr("mpbroker.log.recovery.fsync_directory", synced.append)
    again = reopen(w.log.directory, Known(clean=False, recovery_point=3, durable=3))
    assert (again.state.segment_base, again.state.size) == (3, 0)
    assert synced == [w.log.directory]


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_is_whole_is_not_touched(writer, reopen, is_clean: bool) -> None:  # type: ignore[no-untyped-def]
    """Of thousands of files a change of each, if only of its time, would have to go to the disk."""
    w = writer(index_interval_bytes="200")
    for i in range(20):
        w.append(producer=(7, 0, i))
    w.log.close_cleanly()
    before = {path.name: path.stat().st_ctime_ns for path in w.log.directory.iterdir()}
    again = reopen(w.log.directory, Known(clean=is_clean, recovery_point=20, durable=20))
    assert again.state.log_end == 20
    assert {path.name: path.stat().st_ctime_ns for path in w.log.directory.iterdir()} == before
    again.close_files()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("known", [CLEAN, UNCLEAN])
# type: ignore[no-untyped-def]
def test_missing_files_are_made_again(writer, reopen, suffix: str, known: Known) -> None:
    w = writer(index_interval_bytes="200")
    for i in range(20):
        w.append(producer=(7, 0, i), timestamp=T0 + i)
    w.log.close_cleanly()
    before = {p.name: p.read_bytes() for p in w.log.directory.iterdir()}
    for path in w.log.directory.glob(f"*{suffix}"):
        path.unlink()
    again = reopen(w.log.directory, known)
    assert offsets_in(again) == list(range(20))
    assert again.state.producers.check(7, 0, 19, 1)[0] == -1
    again.close_cleanly()
    assert {p.name: p.read_bytes() for p in w.log.directory.iterdir()} == before


def small_log(writer) -> tuple[Path, list[int]]:  # type: ignore[no-untyped-def]
    w = writer(index_interval_bytes="200")
    ends = [0]
    for i in range(4):
        w.append(producer=(7, 0, i))
        ends.append(w.log.state.size)
    w.log.close_files()
    return w.log.directory, ends


# type: ignore[no-untyped-def]
def test_every_truncation_is_cut_to_whole_batches(writer, reopen, tmp_path: Path) -> None:
    source, ends = small_log(writer)
    for length in range(ends[-1] + 1):
        copy = tmp_path / "copy"
        shutil.copytree(source, copy)
        data = (source / names.segment_name(0)).read_bytes()
        (copy / names.segment_name(0)).write_bytes(data[:length])
        log = reopen(copy, UNCLEAN)
        whole = sum(1 for end in ends[1:] if end <= length)
        assert log.state.log_end == whole
        assert (copy / names.segment_name(0)).stat().st_size == ends[whole]
        assert offsets_in(log) == list(range(whole))
        log.close_files()
        shutil.rmtree(copy)


# type: ignore[no-untyped-def]
def test_every_flipped_bit_is_found(writer, reopen, tmp_path: Path, caplog) -> None:
    """Bytes 12-15 of a batch, its leader epoch, are what no checksum covers."""
    caplog.set_level(logging.ERROR)
    source, ends = small_log(writer)
    data = (source / names.segment_name(0)).read_bytes()
    for at in range(ends[-1]):
        index = max(i for i, end in enumerate(ends) if end <= at)
        in_batch = at - ends[index]
        if 12 <= in_batch < 16 or in_batch < 8:
            continue
        copy = tmp_path / "copy"
        shutil.copytree(source, copy)
        broken = bytearray(data)
        broken[at] ^= 1 << (at % 8)
        (copy / names.segment_name(0)).write_bytes(broken)
        log = reopen(copy, UNCLEAN)
        assert log.state.log_end == index
        log.close_files()
        (copy / names.segment_name(0)).write_bytes(broken)
        with pytest.raises(PartitionDamaged, match="nothing is cut"):
            reopen(copy, Known(clean=False, durable=4))
        assert (copy / names.segment_name(0)).read_bytes() == broken
        shutil.rmtree(copy)


# type: ignore[no-untyped-def]
def test_a_log_that_ends_before_what_was_durable_is_damage(writer, reopen) -> None:
    source, ends = small_log(writer)
    path = source / names.segment_name(0)
    path.write_bytes(path.read_bytes()[: ends[2]])
    with pytest.raises(PartitionDamaged, match="ends at offset 2, but offsets below 3 were durable"):
        reopen(source, Known(clean=False, durable=3))
    assert reopen(source, Known(clean=False, durable=2)).state.log_end == 2


def test_segments_behind_a_torn_one_are_removed(writer, reopen) -> None:  # type: ignore[no-untyped-def]
    w = writer(segment_bytes="1048576")
    for i in range(30):
        w.append(size=100_000, producer=(7, 0, i))
    w.log.close_files()
    bases = segments_of(w.log.directory)
    assert len(bases) == 3
    path = w.log.directory / names.segment_name(bases[1])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = reopen(w.log.directory, UNCLEAN)
    assert again.state.log_end == bases[2] - 1
    assert segments_of(w.log.directory) == bases[:2]
    assert offsets_in(again) == list(range(bases[2] - 1))


# type: ignore[no-untyped-def]
def test_the_recovery_point_saves_the_look_at_older_segments(writer, reopen) -> None:
    w = writer(segment_bytes="1048576")
    for _ in range(40):
        w.append(size=100_000)
    w.log.close_files()
    bases = segments_of(w.log.directory)
    path = w.log.directory / names.segment_name(bases[0])
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    again = reopen(w.log.directory, Known(clean=False, recovery_point=bases[-1], durable=bases[-1]))
    assert again.state.log_end == 40
    assert path.read_bytes() == data


# type: ignore[no-untyped-def]
def test_five_batches_are_known_again_also_across_a_roll(writer, reopen) -> None:
    w = writer(segment_bytes="1048576")
    for i in range(13):
        w.append(size=100_000, producer=(7, 0, i))
    bases = segments_of(w.log.directory)
    assert bases == [0, 10]
    w.log.close_files()
    again = reopen(w.log.directory, Known(clean=False, recovery_point=12))
    for sequence in range(8, 13):
        assert again.state.producers.check(7, 0, sequence, 1)[:2] == (-1, sequence)
    assert again.state.producers.check(7, 0, 7, 1)[0] == 45


# type: ignore[no-untyped-def]
def test_preallocated_indexes_of_another_broker_are_trimmed(writer, reopen) -> None:
    w = writer(index_interval_bytes="200")
    for i in range(20):
        w.append(timestamp=1000 + i)
    w.log.close_cleanly()
    for suffix in (".index", ".timeindex"):
        path = w.log.directory / names.segment_name(0, suffix)
        path.write_bytes(path.read_bytes() + bytes(8 * 12 * 100))
    again = reopen(w.log.directory, CLEAN)
    assert offsets_in(again) == list(range(20))
    again.close_cleanly()
    assert (w.log.directory / names.segment_name(0, ".index")).stat().st_size % 8 == 0
    assert (w.log.directory / names.segment_name(0, ".index")).stat().st_size < 8 * 20


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
def test_a_large_segment_is_checked_in_pieces_with_a_sign_of_life_after_each(
    writer, topic_config, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("mpbroker.log.recovery.PIECE_BYTES", piece_bytes)
    w = writer(index_interval_bytes="200")
    for i in range(50):
        w.append(producer=(7, 0, i), timestamp=T0 + i)
    size = w.log.state.size
    said: list[str] = []
    again = load(
        w.log.directory,
        "t",
        0,
        bytes(range(16)),
        topic_config(index_interval_bytes="200"),
        UNCLEAN,
        said.append,
    )
    assert offsets_in(again) == list(range(50))
    assert again.state.producers.check(7, 0, 49, 1)[0] == -1
    assert len(said) >= min(50, size // max(piece_bytes, size // 50 + 1))
