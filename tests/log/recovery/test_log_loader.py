"""Opening what a stop, clean or not, left: truncations, bit flips, missing files, rolls, damage."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from mpbroker.config.integers import LONG_MAX
from mpbroker.inspection.directory import open_directory
from mpbroker.inspection.findings import Severity
from mpbroker.inspection.partition import check as check_partition
from mpbroker.inspection.repair import CannotRepair, plan
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, OldMessages, PartitionDamaged, load
from mpbroker.records.batch import LEADER_EPOCH_AT
from mpbroker.storage import names
from mpbroker.storage.checkpoints import read_epochs, write_epochs, write_whole
from mpbroker.storage.segments import segments_of
from tests.support.log_writer import MakeWriter, topic_config
from tests.support.opened_logs import offsets_in

T0 = 4_000_000_000_000
UNCLEAN = Known(clean=False)
CLEAN = Known(clean=True)


def reopen(directory: Path, known: Known, say: Callable[[str], None] = str) -> PartitionLog:
    config = topic_config(index_interval_bytes="200")
    return load(directory, "t", 0, bytes(range(16)), config, known, say)


def test_clean_stop_is_trusted_and_goes_on(writer: MakeWriter) -> None:
    w = writer(index_interval_bytes="200")
    for i in range(20):
        w.append(2, producer=(7, 0, 2 * i))
    w.log.close_cleanly()
    again = reopen(w.log.directory, CLEAN)
    assert again.state.log_end == 40
    assert offsets_in(again) == list(range(40))
    assert again.state.producers.check(7, 0, 38, 2) == (-1, 38, T0 + 1)
    assert again.state.producers.check(7, 0, 40, 1)[0] == 0


@pytest.mark.parametrize("batches", [0, 1, 40])
def test_after_a_clean_stop_all_is_as_it_was(writer: MakeWriter, batches: int) -> None:
    """Check also the ends of the indexes, which are read from there alone."""
    w = writer(index_interval_bytes="200")
    for i in range(batches):
        w.append(2, timestamp=T0 + 10 * i)
    w.log.close_cleanly()
    again = reopen(w.log.directory, CLEAN)
    before, after = list(w.log.state.carried()), list(again.state.carried())
    for state in (before, after):
        # When the segment was opened, and bytes since the last index entry: not to be known.
        del state[6:8]
    assert after == before
    entries = before[7]
    assert (entries > 2) == (batches > 1)


def test_a_segment_that_just_began_gets_its_name_on_disk(writer: MakeWriter, monkeypatch) -> None:
    w = writer()
    w.append(3)
    w.roll()
    synced: list[Path] = []
    monkeypatch.setattr("mpbroker.log.recovery.log_loader.fsync_directory", synced.append)
    again = reopen(w.log.directory, Known(clean=False, recovery_point=3, durable=3))
    assert (again.state.segment_base, again.state.size) == (3, 0)
    assert synced == [w.log.directory]


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_is_whole_is_not_touched(writer: MakeWriter, is_clean: bool) -> None:
    """Check that not even the times of files change: thousands of changes would go to the disk."""
    w = writer(index_interval_bytes="200")
    for i in range(20):
        w.append(producer=(7, 0, i))
    w.log.close_cleanly()
    before = {path.name: path.stat().st_ctime_ns for path in w.log.directory.iterdir()}
    again = reopen(w.log.directory, Known(clean=is_clean, recovery_point=20, durable=20))
    assert again.state.log_end == 20
    assert {path.name: path.stat().st_ctime_ns for path in w.log.directory.iterdir()} == before
    again.close_files()


@pytest.mark.parametrize("batches", [1, 20])
def test_the_last_time_entry_of_a_stop_stays(writer: MakeWriter, batches: int) -> None:
    """Check that a kill right after a start leaves the entry that the stop before it wrote."""
    w = writer(index_interval_bytes="200")
    for i in range(batches):
        w.append(producer=(7, 0, i), timestamp=T0 + i)
    w.log.close_cleanly()
    before = {path.name: (path.stat().st_ctime_ns, path.read_bytes()) for path in w.log.directory.iterdir()}
    again = reopen(w.log.directory, Known(clean=False, recovery_point=batches, durable=batches))
    assert {p.name: (p.stat().st_ctime_ns, p.read_bytes()) for p in w.log.directory.iterdir()} == before
    entries = len(before[names.segment_name(0, ".timeindex")][1]) // 12
    assert again.state.take_refused()[1] == (0, entries, batches - 1)
    again.close_files()


@pytest.mark.parametrize("at", [7, 11])
def test_a_last_time_entry_that_no_stop_wrote_is_cut_off(writer: MakeWriter, at: int) -> None:
    """Check it with another timestamp, and with another offset."""
    w = writer()
    for i in range(3):
        w.append(timestamp=T0 + i)
    w.log.close_cleanly()
    path = w.log.directory / names.segment_name(0, ".timeindex")
    whole = path.read_bytes()
    entry = bytearray(whole)
    entry[at] ^= 1
    path.write_bytes(entry)
    again = reopen(w.log.directory, Known(clean=False, recovery_point=3, durable=3))
    assert path.read_bytes() == b""
    again.close_cleanly()
    assert path.read_bytes() == whole


def test_a_time_entry_without_a_snapshot_of_the_same_end_is_cut_off(writer: MakeWriter) -> None:
    """Check it: nobody knows whether the entry is on the device."""
    w = writer()
    w.append(timestamp=T0)
    w.log.close_cleanly()
    (w.log.directory / names.segment_name(1, ".snapshot")).unlink()
    path = w.log.directory / names.segment_name(0, ".timeindex")
    assert path.stat().st_size == 12
    again = reopen(w.log.directory, Known(clean=False, recovery_point=0, durable=1))
    assert path.stat().st_size == 0
    again.close_files()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("known", [CLEAN, UNCLEAN])
def test_missing_files_are_made_again(writer: MakeWriter, suffix: str, known: Known) -> None:
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


def small_log(writer: MakeWriter) -> tuple[Path, list[int]]:
    w = writer(index_interval_bytes="200")
    ends = [0]
    for i in range(4):
        w.append(producer=(7, 0, i))
        ends.append(w.log.state.size)
    w.log.close_files()
    return w.log.directory, ends


def test_every_truncation_is_cut_to_whole_batches(writer: MakeWriter, tmp_path: Path) -> None:
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


def test_a_flipped_bit_of_each_byte_is_found(writer: MakeWriter, tmp_path: Path, caplog) -> None:
    """Check it except for what no checksum covers: base offset, and leader epoch (see below)."""
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


def with_epochs(path: Path, epochs: list[int]) -> None:
    """The batches of a segment get these leader epochs."""
    data, position = bytearray(path.read_bytes()), 0
    for epoch in epochs:
        data[position + LEADER_EPOCH_AT : position + LEADER_EPOCH_AT + 4] = epoch.to_bytes(4, "big")
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    assert position == len(data)
    path.write_bytes(data)


@pytest.mark.parametrize("durable", [0, 2])
def test_epochs_that_were_not_written_down_are_those_of_the_batches(writer: MakeWriter, durable: int) -> None:
    """Check it as after a kill of a broker in a cluster: the next batch has no earlier epoch."""
    source, _ = small_log(writer)
    with_epochs(source / names.segment_name(0), [0, 0, 2, 5])
    again = reopen(source, Known(clean=False, recovery_point=durable, durable=durable))
    assert again.epochs == read_epochs(source) == [(0, 0), (2, 2), (5, 3)]
    assert again.state.log_end == 4


@pytest.mark.parametrize("since", [1, 2, 4])
def test_an_epoch_that_begins_at_the_log_end_may_have_begun(writer: MakeWriter, since: int) -> None:
    """Check it as after two take-overs from one cut, which was made before partitions were opened."""
    source, _ = small_log(writer)
    with_epochs(source / names.segment_name(0), [0] * since + [1] * (4 - since))
    write_epochs(source, [(0, 0), (1, LONG_MAX), (2, LONG_MAX)])
    again = reopen(source, Known(clean=False, recovery_point=1, durable=1))
    begun = [(1, since)] if since < 4 else []
    assert again.epochs == read_epochs(source) == [(0, 0), *begun, (2, 4)]


@pytest.mark.parametrize(
    ("epochs", "offset"), [([0, 64, 0, 0], 1), ([0, 0, 0, 64], 3), ([64, 0, 0, 0], 0), ([0, 0, 1, 0], 2)]
)
@pytest.mark.parametrize(
    "known", [CLEAN, Known(clean=False, durable=4), Known(clean=False, recovery_point=4, durable=4)]
)
def test_a_wrong_leader_epoch_is_found(
    writer: MakeWriter, epochs: list[int], offset: int, known: Known
) -> None:
    """Check all batches since the last index entry, since no checksum covers the epoch."""
    source, _ = small_log(writer)
    path = source / names.segment_name(0)
    with_epochs(path, epochs)
    before = path.read_bytes()
    with pytest.raises(
        PartitionDamaged, match=f"{names.segment_name(0)} is damaged at offset {offset}: its le"
    ):
        reopen(source, known)
    assert path.read_bytes() == before


def test_an_epoch_that_goes_back_is_never_cut(writer: MakeWriter) -> None:
    """Check that such records are kept: they are whole, and no torn write looks like that."""
    source, _ = small_log(writer)
    path = source / names.segment_name(0)
    with_epochs(path, [3, 3, 2, 3])
    write_epochs(source, [(3, 0)])
    before = path.read_bytes()
    with pytest.raises(PartitionDamaged, match="damaged at offset 2: its leader epoch is 2, and by "):
        reopen(source, UNCLEAN)
    assert path.read_bytes() == before


@pytest.mark.parametrize("known", [CLEAN, UNCLEAN, Known(clean=False, recovery_point=30, durable=30)])
@pytest.mark.parametrize("text", ["", "0\n", "0\n1\n7 0\n", "0\n2\n0 3\n0 2\n", "0\n1\n0\n", "\udcff"])
def test_epochs_that_cannot_be_read_or_believed_are_made_anew(
    writer: MakeWriter, known: Known, text: str
) -> None:
    """Check that they are made from all segments, also if the last one is empty."""
    w = writer(segment_bytes="1048576")
    for _ in range(30):
        w.append(size=100_000)
    w.log.sync_files()
    w.roll()
    w.log.close_cleanly()
    first, second, third, last = segments_of(w.log.directory)
    for base, epochs in ((first, [1] * 10), (second, [1] * 4 + [6] * 6), (third, [6] * 10), (last, [])):
        with_epochs(w.log.directory / names.segment_name(base), epochs)
    (w.log.directory / names.LEADER_EPOCHS).write_bytes(text.encode("utf-8", "surrogateescape"))
    again = reopen(w.log.directory, known)
    assert again.epochs == read_epochs(w.log.directory) == [(1, 0), (6, 14)]
    assert offsets_in(again) == list(range(30))


def test_a_log_that_ends_before_what_was_durable_is_damage(writer: MakeWriter) -> None:
    source, ends = small_log(writer)
    path = source / names.segment_name(0)
    path.write_bytes(path.read_bytes()[: ends[2]])
    with pytest.raises(PartitionDamaged, match="ends at offset 2, but offsets below 3 were durable"):
        reopen(source, Known(clean=False, durable=3))
    assert reopen(source, Known(clean=False, durable=2)).state.log_end == 2


def test_segments_behind_a_torn_one_are_removed(writer: MakeWriter) -> None:
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


def test_the_recovery_point_saves_the_look_at_older_segments(writer: MakeWriter) -> None:
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


def test_five_batches_are_known_again_also_across_a_roll(writer: MakeWriter) -> None:
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


def test_preallocated_indexes_of_another_broker_are_trimmed(writer: MakeWriter) -> None:
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
    writer: MakeWriter, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr("mpbroker.log.recovery.log_loader.PIECE_BYTES", piece_bytes)
    w = writer(index_interval_bytes="200")
    for i in range(50):
        w.append(producer=(7, 0, i), timestamp=T0 + i)
    size = w.log.state.size
    said: list[str] = []
    again = reopen(w.log.directory, UNCLEAN, said.append)
    assert offsets_in(again) == list(range(50))
    assert again.state.producers.check(7, 0, 49, 1)[0] == -1
    assert len(said) >= min(50, size // max(piece_bytes, size // 50 + 1))


# ---- messages of before Kafka 0.11 ----


def old_messages(magic: int, first: int, count: int) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    for offset in range(first, first + count):
        builder.append(offset, T0 if magic else None, b"k", b"v" * 100)
    return bytes(builder.build())


@pytest.mark.parametrize("known", [CLEAN, UNCLEAN, Known(clean=False, recovery_point=5, durable=15)])
@pytest.mark.parametrize("has_leftover", [False, True])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_refused_and_not_touched(
    writer: MakeWriter, magic: int, has_leftover: bool, known: Known
) -> None:
    """Check it with a first segment of an old format, and a second one of record batches."""
    w = writer()
    w.append(10)
    w.roll()
    w.append(5)
    w.log.close_cleanly()
    first = w.log.directory / names.segment_name(0)
    first.write_bytes(old_messages(magic, 0, 10))
    if has_leftover:
        (w.log.directory / f"{names.segment_name(0)}.deleted").touch()
    before = {path.name: (path.stat().st_ctime_ns, path.read_bytes()) for path in w.log.directory.iterdir()}
    with pytest.raises(OldMessages) as refused:
        reopen(w.log.directory, known)
    assert str(refused.value) == (
        f"{first} has a message of format v{magic} at byte 0. Brokers before Kafka 0.11 wrote that format, "
        "and it is not read here. Nothing was cut. Serve the directory with Apache Kafka 3 and copy the "
        "topic's records to a new topic there, or delete the topic"
    )
    after = {path.name: (path.stat().st_ctime_ns, path.read_bytes()) for path in w.log.directory.iterdir()}
    assert after == before


@pytest.mark.parametrize("known", [CLEAN, UNCLEAN])
def test_an_old_message_behind_batches_is_no_torn_tail(writer: MakeWriter, known: Known) -> None:
    w = writer()
    w.append(5)
    w.log.close_files()
    segment = w.log.directory / names.segment_name(0)
    data = segment.read_bytes() + old_messages(1, 5, 1)
    segment.write_bytes(data)
    with pytest.raises(OldMessages, match=f"format v1 at byte {w.log.state.size}\\."):
        reopen(w.log.directory, known)
    assert segment.read_bytes() == data


def test_tools_tell_old_messages_from_damage(writer: MakeWriter) -> None:
    """Check it: a repair would drop the messages."""
    w = writer()
    w.append(5)
    w.log.close_cleanly()
    directory = w.log.directory
    segment = directory / names.segment_name(0)
    segment.write_bytes(old_messages(1, 0, 5))
    write_whole(directory.parent / names.META_PROPERTIES, b"version=1\ncluster.id=c\nnode.id=0\n")
    (partition,) = open_directory(directory.parent).partitions
    check_partition(partition)
    said = [one for one in partition.all_findings if one.path == str(segment)]
    assert [(one.severity, one.position) for one in said] == [(Severity.DAMAGE, 0)]
    assert said[0].text == "messages of format v1, of before Kafka 0.11, which are not read here"
    with pytest.raises(CannotRepair, match="has messages of before Kafka"):
        plan(directory)
