"""Topics of a bucket without their broker: any range, searches by time, objects that go, restores."""

from __future__ import annotations

import os
import pickle
import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import mpbroker
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from mpbroker.reading import bucket_catalog, read_bucket
from mpbroker.reading import stream as stream_module
from mpbroker.reading.bucket_catalog import BucketCatalog
from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.errors import CorruptLog, DataLoss, OptionError, SourceUnavailable
from mpbroker.reading.options import parse_options
from mpbroker.reading.plan import Lineage
from mpbroker.reading.stream import Stream
from mpbroker.storage.checkpoints import write_epochs
from mpbroker.storage.names import METADATA_DIRECTORY, segment_name
from mpbroker.storage.remote_segments import write_remote_segments
from tests.support.bucket_world import BucketWorld
from tests.support.object_store_servers import BUCKET, SECRET_KEY, in_a_fork, object_store_server
from tests.support.reading_queries import (
    UNCOMMITTED,
    TransactionalWriter,
    bucket_query,
    offsets_of,
    planned,
    query,
)
from tests.support.spark_logs import FakeBroker, PartitionWriter, fill, row_of

T0 = 1_700_000_000_000


@pytest.fixture
def writer(log_dir: Path) -> PartitionWriter:
    return PartitionWriter(log_dir, "t")


@pytest.fixture
def world(log_dir: Path, tmp_path: Path) -> BucketWorld:
    return BucketWorld(log_dir, tmp_path)


@pytest.fixture
def filled(writer: PartitionWriter, world: BucketWorld) -> BucketWorld:
    """Offsets 0 to 249 in segments of 50: 0 to 99 as segments, 100 to 249 in a cut."""
    fill(writer, 10, roll_every=5, value_bytes=700)
    writer.roll()
    world.upload("t", row_of(writer))
    fill(writer, 15, roll_every=5, value_bytes=700)
    world.publish("t", row_of(writer))
    world.cut()
    return world


def read(url: str, **options: object) -> list[int]:
    found = bucket_query(url, **options)
    return offsets_of(planned(found), found)


@pytest.mark.parametrize("window_bytes", [1000, 10_000, 1 << 20])
def test_any_range_in_any_parts(
    filled: BucketWorld, monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    monkeypatch.setattr(read_bucket, "WINDOW_BYTES", window_bytes)
    for start, end in ((0, 250), (30, 100), (99, 101), (125, 126), (49, 50), (249, 250), (7, 243)):
        for parts in (1, 3, 20):
            limits = {
                "startingOffsets": f'{{"t":{{"0":{start}}}}}',
                "endingOffsets": f'{{"t":{{"0":{end}}}}}',
            }
            found = bucket_query(filled.url, minPartitions=parts, **limits)
            tasks = planned(found)
            assert min(parts, end - start, 5) <= len(tasks) <= parts
            assert offsets_of(tasks, found) == list(range(start, end))


def test_a_task_downloads_little_besides_its_range(
    filled: BucketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_bucket, "WINDOW_BYTES", 1000)
    got: list[tuple[int, int]] = []
    inner = read_bucket.read_stored

    def counted(*asked: Any) -> bytes:
        got.append(asked[2:])
        return inner(*asked)

    monkeypatch.setattr(read_bucket, "read_stored", counted)
    for start in (20, 220):
        got.clear()
        edges = {
            f"{side}Offsets": f'{{"t":{{"0":{start + more}}}}}'
            for side, more in (("starting", 0), ("ending", 10))
        }
        assert read(filled.url, **edges) == list(range(start, start + 10))
        # A batch has 7 KB; the index has an entry for each one.
        assert sum(end - start for start, end in got) < 25_000


def test_bounds_by_weight_and_by_time(filled: BucketWorld) -> None:
    assert read(filled.url, maxBytesPerTask=10_000) == list(range(250))
    for wanted in (0, 1, 55, 99, 100, 149, 249):
        assert read(filled.url, startingTimestamp=T0 + wanted) == list(range(wanted, 250))
    with pytest.raises(OptionError, match="No offset matched"):
        read(filled.url, startingTimestamp=T0 + 250)
    with pytest.raises(SourceUnavailable, match="topic u is not in the bucket"):
        planned(bucket_query(filled.url, "u"))
    assert mpbroker.read("t", bucket=filled.url, columns=["offset"]).read_all().num_rows == 250


def test_a_cut_from_before_partitions_were_open_hides_nothing(filled: BucketWorld) -> None:
    """Check it for the first one of a start, when the metadata log alone is open."""
    published = filled.published.pop("t-0")
    (filled.log_dir / METADATA_DIRECTORY).mkdir()
    filled.publish(METADATA_TOPIC, published._replace(topic_id=METADATA_TOPIC_ID))
    filled.cut()
    assert read(filled.url) == list(range(250))


def test_after_the_last_topic_was_deleted_no_earlier_cut_is_read(
    world: BucketWorld, writer: PartitionWriter
) -> None:
    fill(writer, 5)
    shutil.copytree(world.log_dir / "t-0", world.log_dir / METADATA_DIRECTORY)
    world.publish(METADATA_TOPIC, row_of(writer)._replace(topic_id=METADATA_TOPIC_ID))
    world.publish("t", row_of(writer))
    world.cut()
    planned(bucket_query(world.url, "t"))
    shutil.rmtree(world.log_dir / "t-0")
    del world.published["t-0"]
    world.cut()
    with pytest.raises(SourceUnavailable, match="topic t is not in the bucket"):
        planned(bucket_query(world.url, "t"))


def test_a_place_without_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="has no ledger: name the URL that the broker has"):
        planned(bucket_query(f"file://{tmp_path}"))
    with pytest.raises(OptionError, match=r"mpbroker\.bucket: .* is no directory"):
        planned(bucket_query(f"file://{tmp_path}/none"))
    with pytest.raises(OptionError, match=r"mpbroker\.bucket names no store: it must be s3://"):
        planned(bucket_query("bucket"))


def test_segments_that_go_between_plan_and_read(filled: BucketWorld) -> None:
    strict, lenient = bucket_query(filled.url), bucket_query(filled.url, failOnDataLoss="false")
    tasks = planned(strict)
    first = next(filled.directory.glob("t-*/0/*.log"))
    whole = first.read_bytes()
    first.write_bytes(whole[:-10])
    with pytest.raises(CorruptLog, match=r"\.log has 35\d+ bytes at 0, where 35\d+ were written"):
        offsets_of(tasks, strict)
    first.unlink()
    with pytest.raises(DataLoss, match=r"Cannot read offsets .* aged out"):
        offsets_of(tasks, strict)
    lost = int(first.name[:20])
    left = [one for one in range(250) if not lost <= one < lost + 50]
    assert offsets_of(tasks, lenient) == left
    first.write_bytes(whole)
    for bundle in filled.directory.glob("mpbroker/bundles/*"):
        bundle.unlink()
    # Not lost: later cuts have them.
    with pytest.raises(SourceUnavailable, match=r"is no longer kept\. Run the query again"):
        offsets_of(tasks, lenient)


def test_an_index_that_is_gone_hides_nothing(filled: BucketWorld) -> None:
    for indexes in filled.directory.glob("t-*/0/*.indexes"):
        indexes.unlink()
    assert read(filled.url, startingOffsets='{"t":{"0":20}}', endingOffsets='{"t":{"0":70}}') == list(
        range(20, 70)
    )


def test_what_is_damaged_is_named(filled: BucketWorld) -> None:
    found = bucket_query(filled.url)
    tasks = planned(found)
    first = min(filled.directory.glob("t-*/0/*.log"))
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    with pytest.raises(CorruptLog, match=rf"{first.name} is damaged: .*, in offsets 0 to 49 of t-0"):
        offsets_of(tasks, found)
    data[100] ^= 1
    data[9] = 0x7F
    first.write_bytes(data)
    with pytest.raises(CorruptLog, match=rf"{first.name} is damaged: no batch of \d+ bytes"):
        offsets_of(tasks, found)


def test_an_index_that_is_wrong_hides_nothing(
    writer: PartitionWriter, world: BucketWorld, log_dir: Path
) -> None:
    fill(writer, 20, value_bytes=700)
    index = log_dir / "t-0" / segment_name(0, ".index")
    right = index.read_bytes()
    entries = list(struct.iter_unpack(">ii", right))
    # Each tells the position of a later batch.
    late = b"".join(
        struct.pack(">ii", one[0], two[1]) for one, two in zip(entries, entries[2:], strict=False)
    )
    for wrong in (late, right[8:16] * (len(right) // 8), right[::-1], right[:-3], os.urandom(160)):
        index.write_bytes(wrong)
        world.publish("t", row_of(writer))
        world.cut()
        for start in (0, 55, 120, 199):
            edges = {"startingOffsets": f'{{"t":{{"0":{start}}}}}'}
            assert read(world.url, **edges, maxRecordsPerPartition=70) == list(range(start, 200))


def test_a_cut_of_a_moment_at_which_partitions_cannot_be_asked(
    filled: BucketWorld, writer: PartitionWriter
) -> None:
    fill(writer, 5)
    filled.publish("t", row_of(writer))
    filled.is_writing = True
    assert [one.high_watermark for one in filled.cut().manifest.ends] == [300]
    assert read(filled.url) == list(range(300))
    fill(writer, 5)
    filled.published.clear()
    # As the first one of a start: it says nothing, and the one before is still true.
    assert filled.cut().manifest.ends == []
    assert read(filled.url) == list(range(300))


def some_transactions(writer: TransactionalWriter) -> None:
    """Over two segments; the first has a record whose transaction is aborted in the second."""
    writer.plain(2)
    writer.write(1, 3)
    writer.write(2, 2)
    writer.commit(1)
    writer.snapshot()
    writer.roll()
    writer.plain(1)
    writer.abort(2)
    writer.plain(1)


def test_what_only_the_broker_knows_ends_what_is_committed(log_dir: Path, world: BucketWorld) -> None:
    """A segment is uploaded as soon as its transactions have ended, and the bucket does not know how yet."""
    writer = TransactionalWriter(log_dir, "t")
    writer.begin()
    writer.plain(1)
    world.publish("t", row_of(writer))
    world.cut()
    writer.next_offset -= 1
    (writer.directory / segment_name(0)).write_bytes(b"")
    writer.position = 0
    writer.begin()
    some_transactions(writer)
    (added,) = world.upload("t", row_of(writer))
    assert added.end == 8
    assert read(world.url) == [0, 1, 2, 3, 4]
    assert read(world.url, **UNCOMMITTED) == [0, 1, 2, 3, 4, 5, 6]
    world.cut()
    assert read(world.url) == sorted(writer.committed) == [0, 1, 2, 3, 4, 8, 10]


def test_files_come_first_and_the_bucket_has_the_rest(
    log_dir: Path, world: BucketWorld, fake_broker: FakeBroker
) -> None:
    writer = TransactionalWriter(log_dir, "t")
    writer.begin()
    some_transactions(writer)
    world.upload("t", row_of(writer))
    fake_broker.publish(writer, stable=writer.stable, aborted_end=writer.aborted_end)
    write_remote_segments(log_dir / "t-0", world.ledger.state.remote_segments(writer.topic_id, 0))
    for path in (log_dir / "t-0").glob(f"{0:020d}.*"):
        path.unlink()
    both = {"mpbroker.bucket": world.url}
    found = query(log_dir, **both)
    tasks = planned(found)
    assert [(one.start, one.end, one.bucket is not None) for one in tasks] == [(0, 8, True), (8, 11, False)]
    # The marker in the file is known to who reads the bucket.
    assert offsets_of(tasks, found) == sorted(writer.committed)
    for wanted in (1, 8):
        found = query(log_dir, startingTimestamp=T0 + wanted, **both)
        assert offsets_of(planned(found), found) == [one for one in sorted(writer.committed) if one >= wanted]


def stream(url: str, **options: str) -> Stream:
    given = {"subscribe": "t", "mpbroker.bucket": url, "startingOffsets": "earliest", **options}
    return Stream(parse_options(given | {"fetchOffset.retryIntervalMs": "0"}, streaming=True))


@pytest.fixture
def always_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_catalog, "VIEW_AGE_S", 0.0)
    monkeypatch.setattr(stream_module, "LONGEST_IDLE_WAIT_S", 0.0)


@pytest.mark.usefixtures("always_new")
def test_a_stream_goes_on_with_each_cut(filled: BucketWorld, writer: PartitionWriter) -> None:
    with closing(stream(filled.url)) as run:
        end = run.next_end(run.initial())
        assert end == {"t": {"0": 250}, **{name: {} for name in end if "#" in name}}
        assert "#generation-1" in end
        assert [(one.start, one.end) for one in run.plan(run.initial(), end)] == [(0, 250)]
        fill(writer, 2)
        filled.publish("t", row_of(writer))
        assert run.next_end(end) == end
        filled.cut()
        later = run.next_end(end)
        assert [(one.start, one.end) for one in run.plan(end, later)] == [(250, 270)]
    with closing(stream(filled.url, maxBytesPerTrigger="10000")) as run:
        assert 0 < run.next_end(run.initial())["t"]["0"] < 30
    # Elsewhere the query was further.
    ahead = {**later, "t": {"0": 300}}
    with closing(stream(filled.url)) as run:
        assert run.next_end(ahead) == ahead
        with pytest.raises(SourceUnavailable, match="the last cut in the bucket, is older than the query's"):
            run.plan(ahead, ahead)


@pytest.mark.parametrize("is_standby", [False, True])
@pytest.mark.usefixtures("always_new")
def test_a_checkpoint_notices_a_restore(
    filled: BucketWorld, writer: PartitionWriter, log_dir: Path, *, is_standby: bool
) -> None:
    """Check it for a standby that takes over, too: it goes on at the newest cut with acks=local."""
    before = filled.ledger.state.cuts[-1].event.taken_ms
    with closing(stream(filled.url)) as run:
        run.next_end(run.initial())
        fill(writer, 5)
        writer.roll()
        filled.upload("t", row_of(writer))
        at = run.next_end(run.initial())
        assert at["t"]["0"] == 300
    if is_standby:
        filled.stand_in()
    else:
        filled.restore(before)
    # As the restored broker has it: 250 offsets, and others behind them, in another epoch.
    assert BucketCatalog(filled.url, read_committed=True).lineages({("t", 0): 0})["t", 0] == Lineage(0, -1)
    writer.directory.rename(log_dir / "former")
    again = PartitionWriter(log_dir, "t", topic_id=writer.topic_id)
    fill(again, 28, roll_every=5, value_bytes=700)
    write_epochs(again.directory, [(0, 0), (1, 250)])
    filled.publish("t", row_of(again))
    filled.cut()
    assert BucketCatalog(filled.url, read_committed=True).lineages({("t", 0): 0})["t", 0] == Lineage(1, 250)
    with closing(stream(filled.url)) as run:
        end = run.next_end(at)
        assert (end["t"]["0"], "#generation-2" in end) == (280, True)
        with pytest.raises(
            DataLoss, match="t-0 was read up to 300, and the log has other records from 250 on"
        ):
            run.plan(at, end)
        assert [(one.start, one.end) for one in run.plan({**at, "t": {"0": 240}}, end)] == [(240, 280)]
    with closing(stream(filled.url, failOnDataLoss="false", maxOffsetsPerTrigger="20")) as run:
        end = run.next_end(at)
        assert [(one.start, one.end) for one in run.plan(at, end)] == [(250, 270)]
        later = run.next_end(end)
        assert [(one.start, one.end) for one in run.plan(end, later)] == [(270, 280)]


@pytest.mark.usefixtures("always_new")
def test_a_stream_goes_on_when_the_bucket_was_kafkas(filled: BucketWorld, writer: PartitionWriter) -> None:
    """Kafka went on with the log, so nothing is reported as lost."""
    with closing(stream(filled.url)) as run:
        at = run.next_end(run.initial())
    filled.to_kafka_and_back()
    with closing(stream(filled.url)) as run:
        assert run.next_end(at)["t"] == at["t"], "the bucket has less until the first cut"
        fill(writer, 2)
        filled.publish("t", row_of(writer))
        filled.cut()
        end = run.next_end(at)
        assert [(one.start, one.end) for one in run.plan(at, end)] == [(250, 270)]


@pytest.mark.process
def test_credentials_are_only_in_the_environment(filled: BucketWorld, tmp_path: Path) -> None:
    with object_store_server(tmp_path) as server:
        filled.directory.rename(server.bucket / "broker")

        def work() -> None:
            os.environ.update(server.environment)
            options = bucket_query(f"s3://{BUCKET}/broker", minPartitions=3)
            with closing(open_catalog(options)):
                tasks = planned(options)
            assert len(tasks) == 3
            assert SECRET_KEY.encode() not in pickle.dumps((tasks, options))
            assert offsets_of(tasks, options) == list(range(250))

        in_a_fork(work)
