"""`mpbroker remote export`: Kafka gets the bucket's segments, and no mpbroker writes there any more."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from mpbroker.migration import bucket_export
from mpbroker.migration.bucket_export import Bucket
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.metadata_log import read_image
from mpbroker.migration.segment_records import SEGMENTS_TOPIC, finished_segments, metadata_partition
from mpbroker.migration.to_kafka import Export, export
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.checkpoints import read_topic_id, write_epochs
from mpbroker.storage.names import REMOTE_OWNER, partition_name, segment_name
from mpbroker.storage.segments import batches_of
from tests.support.exported_bucket import URL, ExportedBucket
from tests.support.fault_store import Fault, FaultStore
from tests.support.file_trees import tree
from tests.support.forms import rounds
from tests.support.killed_moves import killed_at
from tests.support.killing_store import Killed, KillingStore

PARTITIONS = 3
# Each step in the long form.
STEP = 200 // rounds(200)


@pytest.fixture(autouse=True)
def few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_export, "PARTITIONS", PARTITIONS)


@pytest.fixture
def ours(tmp_path: Path) -> ExportedBucket:
    return ExportedBucket(tmp_path / "data")


def exported(ours: ExportedBucket, bucket: Bucket | None = None, *, is_dry: bool = False) -> Export:
    return export([ours.path], ("localhost", 9093), is_dry=is_dry, bucket=bucket or ours.bucket)


def values(ours: ExportedBucket, number: int) -> list[bytes]:
    path = ours.path / partition_name(SEGMENTS_TOPIC, number) / segment_name(0)
    with path.open("rb") as file:
        batches = list(batches_of(file, path.stat().st_size))
    return [bytes(record.value or b"") for batch in batches for record in batch.records()]


def check_exported(ours: ExportedBucket, partitions: int = PARTITIONS) -> None:
    image = read_image(ours.kafka.metadata)
    topic_id = next(key for key, name in image.topics.items() if name == SEGMENTS_TOPIC)
    assert len(image.partitions[topic_id]) == partitions
    assert image.configs[2, "orders"] == {"remote.storage.enable": "true"}
    found = [
        [one.objects.base for one in finished_segments(values(ours, number))] for number in range(partitions)
    ]
    wanted: list[list[int]] = [[] for _ in range(partitions)]
    wanted[metadata_partition(ours.topic_id, 0, partitions)] = [0, 3]
    assert found == wanted
    for number in range(partitions):
        assert read_topic_id(ours.path / partition_name(SEGMENTS_TOPIC, number)) == topic_id
    assert ours.state().exported is not None


def test_kafka_gets_the_segments_and_the_ledger_is_closed(ours: ExportedBucket) -> None:
    done = exported(ours)
    assert (done.topics, done.segments) == (1, 2)
    check_exported(ours)
    assert "rsm.config.storage.s3.bucket.name=bucket" in done.settings
    assert "rsm.config.key.prefix=some/prefix/" in done.settings
    with pytest.raises(Fenced, match=r"Apache Kafka may write to the object store.* mpbroker remote import"):
        ours.started()
    # It can be done again.
    entries = ours.memory.objects.keys()
    exported(ours)
    check_exported(ours)
    assert ours.memory.objects.keys() == entries


def test_a_dry_run_changes_nothing(ours: ExportedBucket) -> None:
    before, objects = tree(ours.path), dict(ours.memory.objects)
    assert exported(ours, is_dry=True).segments == 2
    assert (tree(ours.path), ours.memory.objects) == (before, objects)


@pytest.mark.parametrize("is_exported", [False, True])
@pytest.mark.parametrize("is_dry", [False, True])
def test_an_older_copy_is_not_exported(ours: ExportedBucket, is_exported: bool, is_dry: bool) -> None:
    """Its log may end before the segments do. A dry run says so, and an export that is done again."""
    older = ours.path.with_name("older")
    shutil.copytree(ours.path, older)
    ours.started().append([ours.put(6, 8)])
    if is_exported:
        exported(ours)
    with pytest.raises(CannotMove, match="has a copy of this one's"):
        export([older], ("localhost", 9093), is_dry=is_dry, bucket=ours.bucket)


@pytest.mark.parametrize("is_applied", [False, True])
def test_after_a_kill_at_any_request_it_can_be_done_again(tmp_path: Path, is_applied: bool) -> None:
    at, is_killed = 0, True
    while is_killed:
        ours = ExportedBucket(tmp_path / str(at))
        try:
            exported(ours, Bucket(URL, KillingStore(ours.store, at, is_applied=is_applied)))
            is_killed = False
        except Killed:
            exported(ours)
        check_exported(ours)
        at += 1
    assert at > 6


def test_after_a_kill_at_any_step_it_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_export, "PARTITIONS", 1)
    for step in count(0, STEP):
        store = tmp_path / str(step) / "store"
        store.mkdir(parents=True)
        ours = ExportedBucket(store.with_name("data"), directory=DirectoryStore(store))
        if not killed_at(lambda ours=ours: exported(ours), step):
            break
        exported(ours)
        check_exported(ours, 1)
    assert step > 30


def test_a_store_that_fails_leaves_the_broker_its_ledger(ours: ExportedBucket) -> None:
    store = FaultStore(ours.store)
    store.plan("create", Fault.ERROR)
    with pytest.raises(StoreError):
        exported(ours, Bucket(URL, store))
    assert ours.state().exported is None
    exported(ours)
    check_exported(ours)


def test_what_is_refused(ours: ExportedBucket) -> None:
    def says(text: str) -> None:
        with pytest.raises(CannotMove, match=text):
            exported(ours)
        assert ours.state().exported is None

    with pytest.raises(CannotMove, match="too, with mpbroker remote export --url URL"):
        export([ours.path], ("localhost", 9093), is_dry=False)
    write_epochs(ours.home, [(2, 0), (3, 5)])
    says("leader-epoch-checkpoint has other leader epochs for offsets 0 to 2 than the segment")
    write_epochs(ours.home, [(0, 0), (3, 5)])
    (ours.home / segment_name(6)).rename(ours.home / segment_name(7))
    says("begins at offset 7, and the object store has offsets up to 5")
    (ours.home / segment_name(7)).rename(ours.home / segment_name(6))
    owner = (ours.path / REMOTE_OWNER).read_bytes()
    (ours.path / REMOTE_OWNER).unlink()
    says("0 of .* have the file mpbroker.remote.owner")
    OwnerFile(ours.path)
    says("has no ledger of the broker with")
    (ours.path / REMOTE_OWNER).write_bytes(owner)
    exported(ours)
