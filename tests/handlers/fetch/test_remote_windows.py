"""Fetch and ListOffsets of a partition whose sealed segments are in the object store alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.slots import SlotFlag
from mpbroker.ipc.topology import TIER
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import FetchRequest
from mpbroker.records.compression import Codec
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.remote.tier import download_jobs
from mpbroker.storage.reader import Bound, OffsetOutOfRange, PartitionReader
from tests.support.handler_logs import FETCH, TOPIC, fetch
from tests.support.handler_rig import fence, partition_payload
from tests.support.polling import until
from tests.support.stored_segments import TieredLog, tiered_log
from tests.support.tier_end import TieredHandler, tiered_handler

LONG_MS = 60_000
READ_COMMITTED = 1

pytestmark = pytest.mark.usefixtures("small_windows")


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


def test_aborted_transactions_are_known_without_the_end_of_the_last_one(tmp_path: Path) -> None:
    """A log worker that started again knows only the markers in local segments."""
    with tiered_handler(tmp_path, transactions) as tier:
        tier.publish(aborted_end=0)
        answer = tier.fetch(fetch(0, wait_ms=LONG_MS, isolation_level=READ_COMMITTED))
        assert answer.aborted_transactions


@pytest.mark.parametrize("max_bytes", [1 << 20, 1])
def test_a_consumer_goes_on_where_compaction_has_left_no_record(tmp_path: Path, max_bytes: int) -> None:
    bases: list[int] = []

    def make(directory: Path) -> TieredLog:
        log = TieredLog(directory)
        for number in range(4):
            bases.append(log.append([(b"k%d" % number, bytes(50))]))
            # At the segment's end; and these segments have no other records.
            for _ in range(number + 1):
                log.end += number
                log.path(log.bases[-1]).touch()
                if log.end > log.bases[-1]:
                    log.roll()
        bases.append(log.append([(b"local", b"")]))
        return log

    with tiered_handler(tmp_path, make) as tier:
        end, found, offset = tier.log.end, list[int](), 0
        sizes = [one.size for one in tier.partition.segments]
        assert sizes[-1] == 0 < sizes[0]
        while offset < end:
            answer = tier.fetch(fetch(offset, wait_ms=LONG_MS, max_bytes=max_bytes, each=max_bytes))
            batches = list(tier.batches_in(bytes(answer.records)))
            assert answer.error_code == 0
            assert batches
            found.extend(one.header.base_offset for one in batches)
            offset = batches[-1].last_offset + 1
        assert found == bases
        for offset in range(end):
            (first, *_) = tier.batches_in(bytes(tier.fetch(fetch(offset, wait_ms=LONG_MS)).records))
            assert first.header.base_offset == min(base for base in bases if base >= offset)


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


HOUR_MS = 3_600_000


def with_another_partition(**fields: Any) -> FetchRequest:
    request = fetch(0, wait_ms=HOUR_MS)
    wanted = FetchRequest.FetchPartition(1, fetch_offset=0, partition_max_bytes=1 << 20, **fields)
    request.topics[0].partitions.append(wanted)
    return request


def test_an_error_of_another_partition_does_not_wait(tmp_path: Path) -> None:
    with tiered_handler(tmp_path, tiered_log, remote_fetch_max_wait_ms=HOUR_MS) as tier:
        tier.store.gate.clear()
        request = with_another_partition(current_leader_epoch=7)
        remote, local = tier.request(FETCH, 12, request).responses[0].partitions
        assert (remote.error_code, bytes(remote.records)) == (0, b"")
        assert local.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        tier.store.gate.set()


def test_local_partitions_do_not_wait_for_remote_ones(tier: TieredHandler) -> None:
    batch = bytes(tier.log.batches()[0].bytes)
    (tier.log.directory.parent / "logged-1" / f"{0:020d}.log").write_bytes(batch)
    fields = {"high_watermark": 3, "last_stable_offset": 3, "log_end_offset": 3}
    places = {"high_watermark_position": len(batch), "last_stable_position": len(batch)}
    tier.rig.table.write(1, partition_payload(TOPIC, 1, **fields, **places))
    tier.store.gate.clear()
    remote, local = tier.request(FETCH, 12, with_another_partition()).responses[0].partitions
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

    def fails_again() -> bool:
        assert tier.fetch(fetch(0, wait_ms=LONG_MS)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        return len(tier.store.gets) > 2 * download_jobs.TRIES

    until(fails_again, "the store is asked again")
    lines = [one.message for one in caplog.records if one.name == "mpbroker.handlers"]
    assert len(lines) == 1
    assert "logged-0 cannot be read at offset 0" in lines[0]
    end = tier.log.bases[-1]
    assert bytes(tier.fetch(fetch(end, wait_ms=LONG_MS)).records)
    tier.store.fails = lambda _name: False
    until(lambda: bytes(tier.fetch(fetch(0, wait_ms=LONG_MS)).records), "the store is asked again")


def test_a_window_without_the_offset_is_an_error_and_not_asked_for_again_at_once(
    tier: TieredHandler, caplog: pytest.LogCaptureFixture
) -> None:
    questions = []

    def asked(message: calls.RemoteWindow, answer: Callable[[calls.Message], object]) -> None:
        questions.append(message.offset)
        assert len(questions) == 1
        answer(calls.RemoteWindowReady(0, 3, "window"))

    tier.downloads.asked = asked  # type: ignore[method-assign]
    tier.rig.handler.broker.remote._now_ms = lambda: 0
    for _ in range(3):
        assert tier.fetch(fetch(3, wait_ms=LONG_MS)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (line,) = [one.message for one in caplog.records if one.name == "mpbroker.handlers"]
    assert "logged-0 cannot be read at offset 3: the tier's window" in line


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


def test_a_log_start_that_has_just_moved_is_out_of_range(
    tier: TieredHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler has read the table before the log start moves, and the files after that."""

    def fetch_slice(*_: Any, **__: Any) -> None:
        tier.publish(log_start_offset=70)
        raise OffsetOutOfRange("the file is gone")

    monkeypatch.setattr(PartitionReader, "fetch_slice", fetch_slice)
    assert tier.fetch(fetch(69)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    # Nobody has asked the tier.
    assert tier.end.take() == []


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
