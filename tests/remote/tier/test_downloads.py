"""Downloads: what is asked for comes once, is checked, is kept within the cache, and equals the log."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import force_setattr

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT
from mpbroker.remote.layout.object_names import SegmentObjects
from mpbroker.remote.tier import download_jobs, downloads, window_reads
from mpbroker.remote.tier import windows as windows_module
from mpbroker.remote.tier.cache import NEW, RemoteCache
from mpbroker.remote.tier.downloads import Downloads
from mpbroker.remote.tier.window_reads import StoredPartition
from mpbroker.storage.names import REMOTE_CACHE, TXN_INDEX_SUFFIX, segment_name
from mpbroker.storage.reader import Bound, PartitionReader
from mpbroker.storage.transaction_index import read_aborted
from tests.support.full_disk import failing_with
from tests.support.polling import until
from tests.support.stored_segments import ReadStore, TieredLog, tiered_log

WINDOW_BYTES = 1000


class Rig:
    """A tier's downloads without the tier's process; its clock stands still."""

    def __init__(self, directory: Path, log: TieredLog) -> None:
        self.log = log
        self.store = ReadStore()
        self.settings = BrokerConfig(
            remote_log_reader_threads=4,
            mpbroker_remote_cache_bytes=1 << 30,
            mpbroker_remote_url="file:///nowhere",
        )
        self.now_ms = 1_000_000
        self.partition: StoredPartition | None = log.store(self.store)
        self.directory = directory / REMOTE_CACHE
        self.begin()

    def begin(self) -> None:
        """Begin as a new process does, with what is in the cache's directory."""
        self.cache = RemoteCache(
            self.directory, lambda: self.settings.mpbroker_remote_cache_bytes, lambda: self.now_ms
        )
        self.cache.open()
        self.downloads = Downloads(
            self.store,
            self.cache,
            lambda slot, _generation: self.partition if slot == 1 else None,
            self.settings,
            lambda: None,
            lambda: self.now_ms,
        )

    def objects(self, segment: int) -> SegmentObjects:
        assert self.partition is not None
        return self.partition.segments[segment].objects

    def ask(self, offset: int, timestamp_ms: int = -1) -> list[calls.Message]:
        answers: list[calls.Message] = []
        self.downloads.asked(calls.RemoteWindow(1, 5, offset, timestamp_ms), answers.append)
        return answers

    def wait(self, what: Callable[[], object], passes_ms: int = 0) -> None:
        def step() -> None:
            self.downloads.jobs.step()
            self.now_ms += passes_ms

        until(what, "the download ends", step)

    def idle(self) -> None:
        self.wait(lambda: not self.downloads.jobs.is_busy)

    def window(self, offset: int, timestamp_ms: int = -1, passes_ms: int = 0) -> calls.RemoteWindowReady:
        answers = self.ask(offset, timestamp_ms)
        self.wait(lambda: answers, passes_ms)
        (answer,) = answers
        assert isinstance(answer, calls.RemoteWindowReady), answer
        return answer

    def failure(self, offset: int) -> calls.Failed:
        answers = self.ask(offset)
        self.wait(lambda: answers)
        (answer,) = answers
        assert isinstance(answer, calls.Failed)
        return answer

    def walk(self) -> list[calls.RemoteWindowReady]:
        """Return all windows, as one reader asks for them."""
        found, offset = [], 0
        assert self.partition is not None
        while offset < self.partition.segments[-1].end:
            found.append(self.window(offset))
            assert offset < found[-1].end
            offset = found[-1].end
        return found


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "WINDOW_BYTES", WINDOW_BYTES)
    monkeypatch.setattr(window_reads, "REQUEST_BYTES", WINDOW_BYTES)
    monkeypatch.setattr(download_jobs, "BACKOFF_S", 0.001)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "t-0").mkdir()
    made = Rig(tmp_path, tiered_log(tmp_path / "t-0"))
    yield made
    made.downloads.jobs.close()


def reader_of(window: calls.RemoteWindowReady) -> tuple[PartitionReader, Bound]:
    path = Path(window.path)
    size = (path / segment_name(window.base)).stat().st_size
    return PartitionReader(path), Bound(window.end, window.base, size)


def bytes_of(window: calls.RemoteWindowReady) -> bytes:
    return (Path(window.path) / segment_name(window.base)).read_bytes()


def test_all_windows_are_all_of_the_log(rig: Rig) -> None:
    found = rig.walk()
    assert [one.base for one in found[1:]] == [one.end for one in found[:-1]]
    stored = b"".join(rig.log.path(base).read_bytes() for base in rig.log.bases[:-1])
    assert b"".join(map(bytes_of, found)) == stored
    assert len(found) == len(set(rig.store.windows_read())) == len(rig.store.windows_read())


def test_each_offset_and_time_is_in_the_window_that_is_given(rig: Rig) -> None:
    rig.walk()
    for offset in range(120):
        window = rig.window(offset)
        assert window.base <= offset < window.end
        reader, bound = reader_of(window)
        at = reader.locate(offset, bound)
        assert at is not None
        assert at.base_offset <= offset <= at.last_offset
        reader.close()
    times = [record.timestamp for record in rig.log.records()]
    for timestamp_ms in range(times[0] - 5, times[110] + 1, 7):
        first = next(i for i, one in enumerate(times) if one >= timestamp_ms)
        offset = 0 if first < 60 else 60
        found = rig.window(offset, timestamp_ms)
        assert offset <= found.base <= first
        while found.end <= first:
            found = rig.window(found.end, timestamp_ms)
        reader, bound = reader_of(found)
        assert reader.find_timestamp(timestamp_ms, 0, bound).offset == first
        reader.close()


def test_an_offset_in_the_middle_is_one_window(rig: Rig) -> None:
    middle = rig.window(100)
    assert middle.base <= 100 < middle.end
    assert len(rig.store.windows_read()) == 1


def test_twenty_readers_are_one_download(rig: Rig) -> None:
    rig.store.gate.clear()
    answers = [rig.ask(70) for _ in range(20)]
    rig.store.gate.set()
    rig.wait(lambda: all(answers))
    assert len({str(one) for (one,) in answers}) == 1
    assert len(rig.store.windows_read()) == 1
    assert len([name for name, *_ in rig.store.gets if name.endswith(".indexes")]) == 1


def test_readers_in_sequence_are_read_ahead_into_the_next_segment(rig: Rig) -> None:
    first = rig.window(0)
    rig.idle()
    assert len(rig.store.windows_read()) == 1
    last = first
    while last.end < 60:
        last = rig.window(last.end)
        rig.idle()
    read = len(rig.store.windows_read())
    following = rig.window(last.end)
    assert following.base == 60
    # It was there, and so is the one after it; the next but one has come.
    rig.idle()
    assert len(rig.store.windows_read()) == read + 1


def test_nothing_is_read_ahead_into_a_small_cache(rig: Rig) -> None:
    force_setattr(rig.settings, "mpbroker_remote_cache_bytes", downloads.AHEAD_FROM_BYTES - 1)
    second = rig.window(rig.window(0).end)
    rig.idle()
    assert second.base > 0
    assert len(rig.store.windows_read()) == 2


def test_a_restarted_tier_finds_a_warm_cache(rig: Rig) -> None:
    found = rig.walk()
    rig.downloads.jobs.close()
    leftover = rig.directory / "new" / "17"
    leftover.mkdir()
    (leftover / ".log").write_bytes(b"half")
    rig.store.gets.clear()
    rig.begin()
    assert rig.walk() == found
    assert rig.store.gets == []
    assert not leftover.exists()


def test_another_boot_empties_the_cache(rig: Rig) -> None:
    rig.walk()
    (rig.directory / "boot").write_text("another")
    rig.begin()
    assert rig.cache.bytes == 0
    rig.store.gets.clear()
    rig.walk()
    assert rig.store.windows_read()


def test_the_cache_is_bounded_and_keeps_what_was_used_last(rig: Rig) -> None:
    found = rig.walk()
    size = rig.cache.bytes
    rig.now_ms += 10_000
    rig.window(found[0].base)
    rig.now_ms += 10_000
    force_setattr(rig.settings, "mpbroker_remote_cache_bytes", size // 2)
    rig.downloads.jobs.close()
    rig.begin()
    assert rig.cache.bytes <= size // 2
    there = [one for one in found if Path(one.path).exists()]
    assert found[0] in there
    assert found[1] not in there


def test_a_cache_of_one_window_serves_all_windows(rig: Rig) -> None:
    force_setattr(rig.settings, "mpbroker_remote_cache_bytes", WINDOW_BYTES + 300)
    content = b""
    offset = 0
    while offset < 120:
        # What was just handed out stays for a moment: the next one waits for that.
        window = rig.window(offset, passes_ms=100)
        content += bytes_of(window)
        assert rig.cache.bytes <= WINDOW_BYTES + 300
        offset = window.end
    assert content == b"".join(rig.log.path(base).read_bytes() for base in rig.log.bases[:-1])


def test_a_store_that_is_down_fails_after_some_tries_and_is_over_by_itself(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.store.fails = lambda name: name.endswith(".log")
    failure = rig.failure(0)
    assert (failure.error, "is down" in failure.message) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
    assert len(rig.store.windows_read()) == download_jobs.TRIES
    rig.failure(0)
    assert len([one for one in caplog.records if "is down" in one.message]) == 1
    assert rig.cache.promised == 0
    assert list((rig.directory / "new").iterdir()) == []
    rig.store.fails = lambda _name: False
    rig.window(0)


def test_what_cannot_be_put_into_the_cache_leaves_nothing_there(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.window(0)
    with monkeypatch.context() as full:
        full.setattr(Path, "rename", failing_with(errno.ENOSPC))
        assert "No space left" in rig.failure(rig.log.end // 2).message
    rig.idle()
    assert list((rig.directory / NEW).iterdir()) == []
    assert rig.cache.promised == 0
    rig.window(rig.log.end // 2)


def test_one_failed_try_is_no_failure(rig: Rig) -> None:
    rig.window(100)
    left = [2]

    def fails(_name: str) -> bool:
        left[0] -= 1
        return left[0] >= 0

    rig.store.fails = fails
    rig.window(0)


@pytest.mark.parametrize("at", [0, 17, 40, 61, 200])
def test_a_flipped_bit_is_found(rig: Rig, at: int) -> None:
    """In the base offset, the CRC, the counts or the records of the first batch, or in a later batch."""
    name = rig.objects(0).log
    flipped = bytearray(rig.store.objects[name])
    flipped[at] ^= 0x40
    rig.store.objects[name] = bytes(flipped)
    assert rig.failure(0).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert rig.window(70).base >= 60


def test_flipped_indexes_are_found(rig: Rig) -> None:
    name = rig.objects(1).indexes
    rig.store.objects[name] = rig.store.objects[name][:-1] + b"?"
    assert "checksum" in rig.failure(70).message
    assert rig.window(0).base == 0


def test_aborted_transactions_of_a_segment_that_is_deleted_meanwhile_are_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t-0").mkdir()
    log = TieredLog(tmp_path / "t-0")
    log.append([(b"k", bytes(60))], producer=(7, 0, 0), transactional=True)
    log.roll()
    # The marker is in the second segment. The third one has no file of aborted transactions.
    log.end_transaction(ABORT, 7)
    log.append([(b"k", b"")])
    log.roll()
    log.append([(b"k", b"")])
    rig = Rig(tmp_path, log)
    whole = rig.partition
    assert whole is not None
    rig.partition = whole._replace(segments=whole.segments[:1])
    listed = window_reads.segments_of

    def deleted_meanwhile(directory: Path) -> list[int]:
        found = listed(directory)
        log.delete_local(log.bases[-1])
        return found

    monkeypatch.setattr(window_reads, "segments_of", deleted_meanwhile)
    assert "has no segment from offset 1 on" in rig.failure(0).message
    rig.partition = whole
    path = Path(rig.window(0).path)
    assert [one.producer_id for one in read_aborted(path / segment_name(0, TXN_INDEX_SUFFIX))] == [7]
    rig.downloads.jobs.close()


def test_a_short_object_is_found(rig: Rig) -> None:
    name = rig.objects(1).log
    rig.store.objects[name] = rig.store.objects[name][:-1]
    assert rig.failure(119).error == ErrorCode.KAFKA_STORAGE_ERROR


def test_an_unknown_partition_and_an_unknown_offset(rig: Rig) -> None:
    assert rig.failure(120).error == ErrorCode.KAFKA_STORAGE_ERROR
    rig.partition = None
    assert rig.failure(0).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_quota_puts_downloads_off(rig: Rig) -> None:
    force_setattr(rig.settings, "remote_log_manager_fetch_max_bytes_per_second", 100)
    rig.window(0, passes_ms=10_000)
    answers = rig.ask(60)
    rig.wait(lambda: rig.downloads.jobs.next_ms() is not None)
    assert not answers
    rig.wait(lambda: answers, passes_ms=10_000)


def test_what_somebody_removed_is_downloaded_again(rig: Rig) -> None:
    window = rig.window(0)
    (Path(window.path) / segment_name(0)).unlink()
    again = rig.window(0)
    assert bytes_of(again)
    assert again == window


def test_windows_of_a_segment_without_index(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    rig = Rig(tmp_path, tiered_log(tmp_path / "t-0", interval=1 << 20))
    found = rig.walk()
    assert [(one.base, one.end) for one in found] == [(0, 60), (60, 120)]
    # In several requests.
    assert len(rig.store.windows_read()) > 4
    assert [len(list(iterate_batches(bytes_of(one)))) for one in found] == [20, 20]
    rig.downloads.jobs.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_another_segment_of_the_same_base_has_windows_of_its_own(
    rig: Rig, tmp_path: Path, is_restarted: bool
) -> None:
    """Tiered storage was off for the topic, and compaction merged segments before it was on again."""
    rig.walk()
    (tmp_path / "merged").mkdir()
    merged = tiered_log(tmp_path / "merged", per_segment=30)
    rig.partition = merged.store(rig.store)
    if is_restarted:
        rig.downloads.jobs.close()
        rig.begin()
    found = rig.walk()
    assert [one.base for one in found[1:]] == [one.end for one in found[:-1]]
    assert b"".join(map(bytes_of, found)) == merged.path(0).read_bytes()
