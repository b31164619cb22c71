"""Fetch and ListOffsets of a partition whose sealed segments are in the object store alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.handlers.fetch import remote_windows
from mpbroker.ipc.slots import SlotFlag
from mpbroker.ipc.topology import TIER
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import FetchRequest, ListOffsetsRequest
from mpbroker.protocol.numbers import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from mpbroker.records.compression import Codec
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.remote.tier import download, downloads, windows
from mpbroker.storage.reader import Bound, PartitionReader
from tests.support.handler_logs import LIST_OFFSETS, TOPIC, fetch
from tests.support.handler_rig import fence, partition_payload
from tests.support.polling import until
from tests.support.stored_segments import TieredLog, tiered_log
from tests.support.tier_end import TieredHandler, tiered_handler

LONG_MS = 60_000
READ_COMMITTED = 1


@pytest.fixture(autouse=True)
def small_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(download, "REQUEST_BYTES", 1000)
    monkeypatch.setattr(downloads, "BACKOFF_S", 0.001)
    monkeypatch.setattr(remote_windows, "PAUSE_MS", 200)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[TieredHandler]:
    with tiered_handler(tmp_path, tiered_log) as made:
        yield made


def walk(tier: TieredHandler, end: int, **fields: Any) -> list[tuple[int, Any]]:
    """Return the fetched offsets and answers, from the first to the last, as a consumer fetches."""
    found, offset = [], 0
    while offset < end:
        answer = tier.fetch(fetch(offset, wait_ms=LONG_MS, **fields))
        assert answer.error_code == 0
        data = bytes(answer.records)
        found.append((offset, answer))
        for batch in tier.batches_in(data):
            offset = max(offset, batch.last_offset + 1)
    return found


def copied(log: TieredLog, to: Path) -> PartitionReader:
    shutil.copytree(log.directory, to)
    return PartitionReader(to)


# ---- the same bytes as from the disk


@pytest.mark.parametrize("codec", list(Codec))
def test_a_consumer_reads_through_the_seam_to_the_end(tmp_path: Path, codec: Codec) -> None:
    content: list[bytes] = []

    def make(directory: Path) -> TieredLog:
        log = TieredLog(directory)
        for number in range(60):
            if number and number % 20 == 0:
                log.roll()
            log.append([(b"k%d" % number, bytes(number)), (b"dead", None)], codec=codec)
        # Larger than a window, also when it is compressed.
        log.append([(b"large", bytes(range(256)) * 40)], codec=codec)
        log.roll()
        log.append([(b"local", b"")])
        content.extend(bytes(batch.bytes) for batch in log.batches())
        return log

    with tiered_handler(tmp_path, make) as tier:
        found = walk(tier, tier.log.end)
        got = [bytes(batch.bytes) for _, answer in found for batch in tier.batches_in(bytes(answer.records))]
        assert got == content
        assert len(tier.store.windows_read()) > 3
        assert len(set(tier.store.windows_read())) == len(tier.store.windows_read())


def test_max_bytes_of_one_brings_a_batch_each(tier: TieredHandler) -> None:
    found = walk(tier, tier.log.end, max_bytes=1, each=1)
    assert [offset for offset, _ in found] == list(range(0, tier.log.end, 3))
    assert all(len(list(tier.batches_in(bytes(answer.records)))) == 1 for _, answer in found)


def transactions(directory: Path) -> TieredLog:
    """Transactions within windows, over windows, over segments, and into the active segment."""
    log = TieredLog(directory)
    sequences = dict.fromkeys(range(4), 0)

    def append(producer: int) -> None:
        log.append([(b"t", bytes(60))], producer=(producer, 0, sequences[producer]), transactional=True)
        sequences[producer] += 1

    for number in range(90):
        append(0)
        if number % 2:
            append(1)
        if number % 7 == 3:
            log.end_transaction(ABORT if number % 3 else COMMIT, 0)
        if number % 40 == 35:
            log.end_transaction(ABORT, 1)
        if number == 5:
            append(2)
        if number % 25 == 24:
            log.roll()
        log.append([(b"plain", b"")])
    for producer in (0, 1, 2):
        log.end_transaction(ABORT, producer)
    return log


def test_aborted_transactions_are_those_of_a_local_read(tmp_path: Path) -> None:
    readers: list[PartitionReader] = []

    def make(directory: Path) -> TieredLog:
        log = transactions(directory)
        readers.append(copied(log, tmp_path / "copy"))
        return log

    with tiered_handler(tmp_path, make) as tier:
        (reader,) = readers
        last = tier.log.bases[-1]
        bound = Bound(tier.log.end, last, tier.log.path(last).stat().st_size)
        aborted_end = max(one.last_offset for one in tier.log.aborted()) + 1
        aborted = 0
        for offset, answer in walk(tier, tier.log.end, isolation_level=READ_COMMITTED):
            piece = reader.fetch_slice(offset, len(bytes(answer.records)), bound)
            assert piece is not None
            assert reader.read(piece) == bytes(answer.records)
            expected = reader.aborted(offset, piece, bound, aborted_end)
            got = [(one.producer_id, one.first_offset) for one in answer.aborted_transactions]
            assert got == [(one.producer_id, one.first_offset) for one in expected]
            aborted += len(got)
        assert aborted > 20
        reader.close()


# ---- who waits for what


def test_local_partitions_do_not_wait_for_remote_ones(tier: TieredHandler) -> None:
    batch = bytes(tier.log.batches()[0].bytes)
    (tier.log.directory.parent / "logged-1" / f"{0:020d}.log").write_bytes(batch)
    fields = {"high_watermark": 3, "last_stable_offset": 3, "log_end_offset": 3}
    places = {"high_watermark_position": len(batch), "last_stable_position": len(batch)}
    tier.rig.table.write(1, partition_payload(TOPIC, 1, **fields, **places))
    tier.store.gate.clear()
    request = fetch(0, wait_ms=LONG_MS)
    request.topics[0].partitions.append(
        FetchRequest.FetchPartition(1, fetch_offset=0, partition_max_bytes=1 << 20)
    )
    remote, local = tier.request(1, 12, request).responses[0].partitions
    assert (remote.error_code, bytes(remote.records)) == (0, b"")
    assert bytes(local.records) == batch
    tier.store.gate.set()
    # The download has gone on.
    assert bytes(tier.fetch(fetch(0, wait_ms=LONG_MS)).records)
    assert len(tier.store.windows_read()) == 1


def test_a_fetch_that_waits_too_long_is_answered_without_records(tmp_path: Path) -> None:
    with tiered_handler(tmp_path, tiered_log, remote_fetch_max_wait_ms=1) as tier:
        tier.store.gate.clear()
        answer = tier.fetch(fetch(0, wait_ms=0))
        assert (answer.error_code, bytes(answer.records)) == (0, b"")
        tier.store.gate.set()
        assert bytes(tier.fetch(fetch(0, wait_ms=LONG_MS)).records)


def test_a_fetch_waits_for_the_store_beyond_its_own_wait(tier: TieredHandler) -> None:
    assert bytes(tier.fetch(fetch(0, wait_ms=0)).records)


def test_twenty_fetches_are_one_download(tier: TieredHandler) -> None:
    for _ in range(20):
        assert bytes(tier.fetch(fetch(0, wait_ms=LONG_MS)).records)
    assert len(tier.store.windows_read()) == 1


# ---- failures


def test_a_store_that_is_down_is_an_error_of_that_partition_until_it_is_back(
    tier: TieredHandler, caplog: pytest.LogCaptureFixture
) -> None:
    tier.store.fails = lambda _name: True
    for _ in range(3):
        assert tier.fetch(fetch(0, wait_ms=LONG_MS)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    lines = [one.message for one in caplog.records if one.name == "mpbroker.handlers"]
    assert len(lines) == 1
    assert "logged-0 cannot be read at offset 0" in lines[0]
    end = tier.log.bases[-1]
    assert bytes(tier.fetch(fetch(end, wait_ms=LONG_MS)).records)
    tier.store.fails = lambda _name: False
    until(lambda: bytes(tier.fetch(fetch(0, wait_ms=LONG_MS)).records), "the store is asked again")


def test_a_tier_that_dies_is_waited_for(tier: TieredHandler) -> None:
    tier.store.gate.clear()
    answered = tier.begin(fetch(0, wait_ms=LONG_MS))
    tier.serve()
    fence(tier.rig, TIER, alive=False)
    assert not answered()
    tier.store.gate.set()
    tier.restart()
    assert bytes(tier.wait(answered).records)


def test_without_a_tier_the_offsets_are_an_error_after_some_time(tier: TieredHandler) -> None:
    fence(tier.rig, TIER, alive=False)
    server = tier.rig.handler.servers[TIER]
    answered = tier.begin(fetch(0, wait_ms=LONG_MS))
    assert not answered()
    server.expire(tier.rig.handler.broker.monotonic_ms() + LONG_MS)
    assert tier.wait(answered).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_below_the_log_start_and_without_remote_segments_offsets_are_out_of_range(
    tier: TieredHandler,
) -> None:
    tier.publish(log_start_offset=70)
    assert tier.fetch(fetch(69)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert tier.fetch(fetch(70, wait_ms=LONG_MS)).error_code == 0
    tier.upload(0)
    assert tier.fetch(fetch(70)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# ---- files that go


def test_a_window_that_is_removed_before_it_is_sent_comes_again(tier: TieredHandler) -> None:
    request = fetch(0, wait_ms=LONG_MS)
    assert bytes(tier.fetch(request).records)
    answered = tier.begin(request)
    shutil.rmtree(next(tier.cache.directory.glob("*-0/*.0.*")))
    with pytest.raises(FileNotFoundError):
        answered()
    assert bytes(tier.fetch(request, flags=SlotFlag.AGAIN).records)


def test_files_of_removed_windows_are_closed(tier: TieredHandler) -> None:
    tier.fetch(fetch(0, wait_ms=LONG_MS))
    remote = tier.rig.handler.broker.remote
    assert len(remote) == 1
    remote.forget_deleted()
    assert len(remote) == 1
    shutil.rmtree(next(tier.cache.directory.glob("*-0/*.0.*")))
    remote.forget_deleted()
    assert len(remote) == 0


def test_the_seam_moves_under_a_reader(tmp_path: Path) -> None:
    with tiered_handler(tmp_path, tiered_log) as tier:
        log = tier.log
        before = log.bases[-1]
        assert bytes(tier.fetch(fetch(before, wait_ms=LONG_MS)).records)
        log.roll()
        log.append([(b"later", b"")])
        tier.publish()
        tier.upload()
        log.delete_local(log.bases[-1])
        tier.rig.handler.broker.readers.forget_deleted()
        tier.rig.handler.broker.fetch_positions.forget_deleted()
        answer = tier.fetch(fetch(before, wait_ms=LONG_MS))
        assert bytes(answer.records)
        assert (answer.error_code, next(iter(tier.batches_in(bytes(answer.records)))).header.base_offset) == (
            0,
            before,
        )


# ---- ListOffsets


def listed(tier: TieredHandler, timestamp_ms: int) -> tuple[int, int]:
    """Return (timestamp, offset) of one partition's answer."""
    wanted = ListOffsetsRequest.ListOffsetsPartition(0, timestamp=timestamp_ms)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic("logged", [wanted])]
    )
    (answer,) = tier.request(LIST_OFFSETS, 11, request).topics[0].partitions
    assert answer.error_code == 0
    return answer.timestamp, answer.offset


def test_the_offsets_with_names(tier: TieredHandler) -> None:
    tier.publish(log_start_offset=4)
    names = EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD, LATEST
    assert [listed(tier, name)[1] for name in names] == [4, 120, 119, 120, 180]
    tier.upload(60)
    assert [listed(tier, name)[1] for name in names[2:4]] == [59, 60]
    tier.upload(0)
    assert [listed(tier, name)[1] for name in names[1:4]] == [4, -1, 4]


def test_offsets_by_time_are_those_of_the_whole_log(tmp_path: Path) -> None:
    times: list[int] = []

    def make(directory: Path) -> TieredLog:
        log = tiered_log(directory)
        times.extend(record.timestamp for record in log.records())
        return log

    with tiered_handler(tmp_path, make) as tier:
        for log_start in (0, 31):
            tier.publish(log_start_offset=log_start)
            for timestamp_ms in range(times[0] - 1, times[-1] + 1, 23):
                first = next(i for i, one in enumerate(times) if one >= timestamp_ms and i >= log_start)
                assert listed(tier, timestamp_ms) == (times[first], first)
        assert listed(tier, times[-1] + 1) == (-1, -1)


@pytest.mark.parametrize("place", [5, 50, 70, 119, 130, 179])
def test_the_largest_timestamp_is_found_wherever_it_is(tmp_path: Path, place: int) -> None:
    def make(directory: Path) -> TieredLog:
        log = TieredLog(directory)
        for number in range(180):
            if number in (60, 120):
                log.roll()
            log.append([(b"k", bytes(30))], timestamp=9999 if number == place else 1000 + number)
        return log

    with tiered_handler(tmp_path, make) as tier:
        assert listed(tier, MAX_TIMESTAMP) == (9999, place)
        tier.publish(log_start_offset=place + 1)
        left = range(place + 1, 180)
        assert listed(tier, MAX_TIMESTAMP) == ((1179, 179) if left else (-1, -1))


def test_the_largest_timestamp_of_a_segment_that_is_left_in_part(tmp_path: Path) -> None:
    """The largest one of the whole segment lies below the log start, the one of the rest is not its last."""

    def make(directory: Path) -> TieredLog:
        log = TieredLog(directory)
        for number in range(60):
            log.append([(b"k", bytes(30))], timestamp={5: 9999, 40: 5000}.get(number, 1000))
        log.roll()
        log.append([(b"k", b"")], timestamp=2000)
        return log

    with tiered_handler(tmp_path, make) as tier:
        tier.publish(log_start_offset=10)
        assert listed(tier, MAX_TIMESTAMP) == (5000, 40)


def test_a_search_for_a_time_fails_in_words_of_kafka(tier: TieredHandler) -> None:
    tier.store.fails = lambda _name: True
    wanted = ListOffsetsRequest.ListOffsetsPartition(0, timestamp=1000)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic("logged", [wanted])]
    )
    (answer,) = tier.request(LIST_OFFSETS, 11, request).topics[0].partitions
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
