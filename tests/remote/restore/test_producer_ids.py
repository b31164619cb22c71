"""A restored broker gives out no producer id that the broker before may have given out."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.config.integers import LONG_MAX
from mpbroker.coordinator.metadata.metadata_records import MetadataRecord, build_metadata_batch, encode_record
from mpbroker.coordinator.metadata.replay import replay
from mpbroker.ipc.table import Partition, PartitionFlag
from mpbroker.protocol.messages import ProducerIdsRecord, RemoveTopicRecord, TopicRecord
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from mpbroker.records.iterate import iterate_batches
from mpbroker.remote.restore.producer_ids import JUMP, jump_ahead
from mpbroker.storage.checkpoints import read_offsets, write_epochs, write_offsets
from mpbroker.storage.names import METADATA_DIRECTORY, RECOVERY_POINTS, segment_name

PATH = f"0/{METADATA_DIRECTORY}"


def next_id(log_dir: Path, epoch: int = 4) -> int:
    """Read the metadata as a coordinator does."""
    newest = max((log_dir / METADATA_DIRECTORY).glob("*.log"))
    data = newest.read_bytes()
    last = list(iterate_batches(data))[-1]
    assert last.header.position + last.header.length == len(data)
    assert last.header.leader_epoch == epoch
    bound = last.last_offset + 1, int(newest.stem), len(data)
    end = Partition(
        METADATA_TOPIC_ID, 0, 1, PartitionFlag.PARTITION_LIVE, 0, 0, 0, 0, *bound, *bound, bound[0]
    )
    return replay((str(log_dir),), end)[0].next_producer_id


@pytest.mark.parametrize("tail", [b"", b"\0" * 200, b"torn"])
def test_the_next_id_is_beyond_all_that_the_log_has(tmp_path: Path, tail: bytes) -> None:
    directory = tmp_path / METADATA_DIRECTORY
    directory.mkdir()
    topic = TopicRecord(name="t", topic_id=b"1" * 16)
    first: list[MetadataRecord] = [topic, ProducerIdsRecord(broker_id=1, next_producer_id=7_000)]
    second: list[MetadataRecord] = [RemoveTopicRecord(topic_id=topic.topic_id)]
    for base, records in ((0, first), (2, second)):
        batch = build_metadata_batch([encode_record(one) for one in records], 5, base, 4)
        (directory / segment_name(base)).write_bytes(bytes(batch) + (tail if base else b""))
    jump_ahead(["1/t-0", PATH], [tmp_path], 2)
    assert next_id(tmp_path) == 7_000 + 2 * JUMP


def test_also_where_no_id_was_given_out(tmp_path: Path) -> None:
    directory = tmp_path / METADATA_DIRECTORY
    directory.mkdir()
    batch = build_metadata_batch([encode_record(TopicRecord(name="t", topic_id=b"1" * 16))], 5, 0, 4)
    (directory / segment_name(0)).write_bytes(batch)
    write_offsets(tmp_path / RECOVERY_POINTS, {(METADATA_TOPIC, 0): 1, ("t", 0): 5})
    jump_ahead([PATH], [tmp_path], 1)
    assert next_id(tmp_path) == JUMP
    # So a start after a clean stop takes the record for no damage.
    assert dict(read_offsets(tmp_path / RECOVERY_POINTS)) == {(METADATA_TOPIC, 0): 2, ("t", 0): 5}


def test_the_record_is_of_the_epoch_that_an_owner_without_records_has_begun(tmp_path: Path) -> None:
    directory = tmp_path / METADATA_DIRECTORY
    directory.mkdir()
    batch = build_metadata_batch([encode_record(TopicRecord(name="t", topic_id=b"1" * 16))], 5, 0, 4)
    (directory / segment_name(0)).write_bytes(batch)
    write_epochs(directory, [(4, 0), (5, 1), (6, LONG_MAX)])
    jump_ahead([PATH], [tmp_path], 1)
    assert next_id(tmp_path, epoch=5) == JUMP
