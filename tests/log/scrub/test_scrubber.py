"""The scrubber: what it finds in segments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpbroker.log.partition.transaction_index_rebuild import expected
from mpbroker.log.scrub.scrubber import ColdFile, SegmentReplaced, SegmentScrub
from mpbroker.records.batch import BATCH_HEADER_BYTES, LEADER_EPOCH_AT
from mpbroker.storage.damage import Damage, Place
from mpbroker.storage.leader_epochs import Epochs
from mpbroker.storage.names import segment_name
from mpbroker.storage.residency import resident
from tests.support.flipped_bits import RECORDS, flip
from tests.support.log_writer import MakeWriter
from tests.support.page_cache import evict


@pytest.fixture
def segment(writer: MakeWriter) -> tuple[Path, int, list[int]]:
    """A sealed segment of ten batches, the base of the next one, and where the batches begin."""
    made = writer(segment_bytes="1048576")
    starts = []
    for _ in range(10):
        starts.append(made.log.state.size)
        made.append(RECORDS)
    path = made.log.directory / segment_name(0)
    made.roll()
    made.log.close_files()
    return path, 10 * RECORDS, starts


def scrubbed(
    path: Path, next_base: int, place: Place | None = None, epochs: Epochs = ((0, 0),)
) -> list[Damage]:
    file = ColdFile(path)
    try:
        place = place or Place(path.parent.name, int(path.stem), file.identity)
        for _ in SegmentScrub(file, place, next_base, lambda: 7, epochs).run():
            pass
        assert place.position == file.identity.size
        return place.found
    finally:
        file.close()


def shown(found: list[Damage]) -> list[tuple[int, int, int, int]]:
    return [(one.position, one.end, one.first, one.end_offset) for one in found]


def test_a_whole_segment_has_no_damage(segment: tuple[Path, int, list[int]]) -> None:
    assert scrubbed(*segment[:2]) == []


@pytest.mark.parametrize("at", [8, 11, 16, 17, 23, 57, BATCH_HEADER_BYTES + 3])
@pytest.mark.parametrize("batch", [0, 4, 9])
def test_one_bit_costs_one_batch(segment: tuple[Path, int, list[int]], batch: int, at: int) -> None:
    """Check a flipped bit of its length, magic, CRC, attributes, deltas, count and records."""
    path, end, starts = segment
    flip(path, starts[batch] + at)
    ends = [*starts[1:], path.stat().st_size]
    assert shown(scrubbed(path, end)) == [
        (starts[batch], ends[batch], batch * RECORDS, (batch + 1) * RECORDS)
    ]


@pytest.mark.parametrize("bit", [0, 1, 2, 5, 20, 40, 63])
@pytest.mark.parametrize("batch", [0, 4, 9])
def test_a_wrong_base_offset_is_found(segment: tuple[Path, int, list[int]], batch: int, bit: int) -> None:
    """No CRC covers it: those around it tell. It costs no more than itself and, where it cannot be told which
    one is wrong, its neighbour.
    """
    path, end, starts = segment
    flip(path, starts[batch] + 7 - bit // 8, 1 << bit % 8)
    (found,) = scrubbed(path, end)
    ends = [*starts[1:], path.stat().st_size]
    assert found.position <= starts[batch] < found.end
    assert found.first <= batch * RECORDS < (batch + 1) * RECORDS <= found.end_offset
    assert found.position == starts[batch]
    assert found.end == ends[batch]


@pytest.mark.parametrize("bit", [0, 7, 30, 31])
@pytest.mark.parametrize("batch", [0, 4, 9])
def test_a_wrong_leader_epoch_is_found(segment: tuple[Path, int, list[int]], batch: int, bit: int) -> None:
    """Check it, since no CRC covers the epoch either."""
    path, end, starts = segment
    behind = path.read_bytes()[: starts[1]]
    path.with_name(segment_name(end)).write_bytes(end.to_bytes(8, "big") + behind[8:])
    flip(path, starts[batch] + LEADER_EPOCH_AT + 3 - bit // 8, 1 << bit % 8)
    ends = [*starts[1:], path.stat().st_size]
    assert shown(scrubbed(path, end)) == [
        (starts[batch], ends[batch], batch * RECORDS, (batch + 1) * RECORDS)
    ]


def test_epochs_that_no_batch_has_are_not_believed(
    segment: tuple[Path, int, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    assert scrubbed(*segment[:2], epochs=((4, 0),)) == []
    assert f"leader-epoch-checkpoint is not trusted: at offset {RECORDS - 1} it has epoch 4, " in caplog.text


def test_epochs_go_by_offsets(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    for batch in range(4, 10):
        flip(path, starts[batch] + LEADER_EPOCH_AT + 3, 2)
    epochs = ((0, 0), (2, 4 * RECORDS), (5, end))
    assert scrubbed(path, end, epochs=epochs) == []
    flip(path, starts[3] + LEADER_EPOCH_AT + 3, 2)
    flip(path, starts[7] + LEADER_EPOCH_AT + 3, 2)
    assert [one.first // RECORDS for one in scrubbed(path, end, epochs=epochs)] == [3, 7]
    # What lies before all that are known, and what is of none, is left alone.
    assert scrubbed(path, end, epochs=((0, 8 * RECORDS), (2, 9 * RECORDS))) != []
    assert scrubbed(path, end, epochs=((2, 9 * RECORDS),)) == []


@pytest.mark.parametrize("start", [4 * RECORDS + 1, 5 * RECORDS - 1])
def test_the_epoch_of_the_batch_in_which_the_log_starts_is_known(
    segment: tuple[Path, int, list[int]], start: int
) -> None:
    """Check a batch that begins before the first entry, which moves on with the log start offset."""
    path, end, starts = segment
    epochs = ((0, start),)
    assert scrubbed(path, end, epochs=epochs) == []
    flip(path, starts[3] + LEADER_EPOCH_AT + 3, 4)
    assert scrubbed(path, end, epochs=epochs) == [], "nobody can ask for it any more"
    flip(path, starts[4] + LEADER_EPOCH_AT + 3, 4)
    assert [one.first for one in scrubbed(path, end, epochs=epochs)] == [4 * RECORDS]


def test_a_checkpoint_is_believed_for_a_batch_that_agrees(segment: tuple[Path, int, list[int]]) -> None:
    """Check that one without an agreeing batch is not: a flipped bit in it would make all batches damaged."""
    path, end, starts = segment
    behind = path.read_bytes()[: starts[1]]
    path.with_name(segment_name(end)).write_bytes(end.to_bytes(8, "big") + behind[8:])
    assert scrubbed(path, end, epochs=((4, 4 * RECORDS),)) == []
    assert scrubbed(path, end, epochs=((0, 4 * RECORDS),)) == []


def test_behind_the_last_whole_batch_all_is_damaged(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    os.truncate(path, path.stat().st_size - 5)
    assert shown(scrubbed(path, end)) == [(starts[9], path.stat().st_size, 9 * RECORDS, end)]


def test_two_damages_are_two(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    flip(path, starts[2] + 70)
    flip(path, starts[6] + 70)
    assert [one.first for one in scrubbed(path, end)] == [2 * RECORDS, 6 * RECORDS]


def test_gaps_of_compaction_are_none(writer: MakeWriter) -> None:
    made = writer(segment_bytes="1048576")
    for _ in range(4):
        made.append(RECORDS)
        made.log.state.note_batch(made.log.state.log_end + 4, made.log.state.size, 0, 0)
    path = made.log.directory / segment_name(0)
    made.log.close_files()
    assert scrubbed(path, made.log.state.log_end) == []


def test_what_is_read_wrongly_once_is_no_damage(
    segment: tuple[Path, int, list[int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, end, starts = segment
    whole = ColdFile.read

    def read(self: ColdFile, position: int, count: int) -> bytes:
        data = bytearray(whole(self, position, count))
        if position <= starts[3] + 80 < position + count:
            data[starts[3] + 80 - position] ^= 1
        return bytes(data)

    monkeypatch.setattr(ColdFile, "read", read)
    assert scrubbed(path, end) == []
    assert "was read differently from the disk" in caplog.text


def test_a_segment_that_is_replaced_meanwhile_has_no_finding(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    flip(path, starts[1] + 70)
    file = ColdFile(path)
    work = SegmentScrub(file, Place("t-0", 0, file.identity), end, lambda: 7).run()
    path.rename(path.with_name("other"))
    path.write_bytes(b"")
    with pytest.raises(SegmentReplaced):
        list(work)
    file.close()


def test_what_compaction_has_just_put_in_place_reaches_beyond_the_next_one(
    segment: tuple[Path, int, list[int]],
) -> None:
    path, _, _ = segment
    path.with_name(segment_name(6)).touch()
    (found,) = scrubbed(path, 6)
    assert "reach beyond 6" in found.reason
    path.with_name(path.name + ".swap").touch()
    assert scrubbed(path, 6) == []
    path.with_name(path.name + ".swap").unlink()
    path.with_name(segment_name(6)).unlink()
    assert scrubbed(path, 6) == []


def test_a_pass_goes_on_within_a_segment(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    flip(path, starts[1] + 70)
    flip(path, starts[8] + 70)
    file = ColdFile(path)
    place = Place("t-0", 0, file.identity, starts[5], 5 * RECORDS)
    file.close()
    assert [one.first for one in scrubbed(path, end, place)] == [8 * RECORDS]


@pytest.mark.disk
def test_hot_pages_stay_and_cold_ones_do_not_come(tmp_path: Path) -> None:
    """Check it where the file system says what is in the page cache."""
    path = tmp_path / "file"
    path.write_bytes(bytes(8 << 18))
    evict(path)
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 1 << 18, 5 << 18)
    file = ColdFile(path)
    for piece in range(8):
        file.read(piece << 18, 1 << 18)
    file.close()
    assert [resident(fd, piece << 18, 4096) for piece in range(8)] == [piece == 5 for piece in range(8)]
    os.close(fd)


@pytest.mark.disk
def test_looking_for_what_was_aborted_leaves_the_page_cache_as_it_was(writer: MakeWriter) -> None:
    made = writer(segment_bytes="16777216")
    while made.log.state.size < 5 << 20:
        made.append(RECORDS, size=50_000)
    path, size = made.log.directory / segment_name(0), made.log.state.size
    made.log.close_files()
    evict(path)
    fd = os.open(path, os.O_RDONLY)
    assert sum(expected(path.parent, 0, leaves_cache=True)) == size
    assert not any(resident(fd, page, 1) for page in range(0, size, 4096))
    assert os.pread(fd, size, 0) == path.read_bytes()
    assert sum(expected(path.parent, 0, leaves_cache=True)) == size
    assert resident(fd, 0, size)
    os.close(fd)
