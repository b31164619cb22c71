"""`mpbroker remote import`: segments that Kafka has uploaded enter the ledger under their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.migration.bucket_export import Bucket
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.from_kafka import Import, import_
from mpbroker.migration.segment_records import SEGMENTS_TOPIC
from mpbroker.migration.to_kafka import export
from mpbroker.remote.ledger.events import Started
from mpbroker.remote.ledger.ledger import Ledger
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.startup.foreign_metadata import refuse_foreign_metadata
from mpbroker.storage.remote_segments import read_remote_segments
from tests.migration.test_bucket_export import few_partitions as few_partitions
from tests.support.exported_bucket import URL, ExportedBucket
from tests.support.file_trees import tree
from tests.support.kafka_directory import DIRECTORY_ID
from tests.support.killing_store import Killed, KillingStore


def handed_over(path: Path) -> ExportedBucket:
    """Return a Kafka's directory and bucket: it has deleted the first segment, and copied two more."""
    made = ExportedBucket(path)
    export([made.path], ("localhost", 9093), is_dry=False, bucket=made.bucket)
    _, finished = made.copied(0, 3)
    deleted = [finished[:-2] + bytes([state, 0]) for state in (2, 3)]
    made.start_kafka(*made.copied(6, 8), *made.copied(8, 10), *deleted)
    return made


@pytest.fixture
def kafkas(tmp_path: Path) -> ExportedBucket:
    return handed_over(tmp_path / "data")


def imported(ours: ExportedBucket, bucket: Bucket | None = None, *, is_dry: bool = False) -> Import:
    return import_([ours.path], is_dry=is_dry, bucket=bucket or ours.bucket)


def check_ours(ours: ExportedBucket, bases: list[int]) -> None:
    """Check that the broker has these segments, and is the one that writes the ledger."""
    refuse_foreign_metadata([str(ours.path)])
    assert ours.bases() == bases
    assert [one.base for one in read_remote_segments(ours.home)] == bases
    assert not list(ours.path.glob(f"{SEGMENTS_TOPIC}-*"))
    assert ours.state().exported is None
    ledger = Ledger(LedgerReader(ours.store), OwnerFile(ours.path))
    ledger.start(Started(DIRECTORY_ID, 1, "host"))


def test_segments_enter_the_ledger_under_their_names(kafkas: ExportedBucket) -> None:
    objects = {name: body for name, body in kafkas.store.objects.items() if not name.startswith("mpbroker/")}
    done = imported(kafkas)
    assert (done.topics, done.segments, done.left) == (1, 3, [])
    check_ours(kafkas, [3, 6, 8])
    assert objects.items() <= kafkas.store.objects.items()
    new = kafkas.state().segments_of(kafkas.topic_id, 0)[-1]
    assert (new.end, new.log_crc, new.epochs) == (10, None, ((3, 8),))
    assert new.is_log(5)
    with pytest.raises(CannotMove, match="belongs to a broker of mpbroker, and was not exported"):
        imported(kafkas)


def test_a_bucket_that_had_no_ledger_gets_one(kafkas: ExportedBucket) -> None:
    for name in [name for name in kafkas.store.objects if name.startswith("mpbroker/")]:
        del kafkas.store.objects[name]
    imported(kafkas)
    check_ours(kafkas, [3, 6, 8])


def test_an_export_that_no_kafka_has_used_is_taken_back(tmp_path: Path) -> None:
    ours = ExportedBucket(tmp_path / "data")
    with pytest.raises(CannotMove, match="belongs to a broker of mpbroker, and was not exported"):
        imported(ours)
    export([ours.path], ("localhost", 9093), is_dry=False, bucket=ours.bucket)
    assert imported(ours, is_dry=True).segments == 2
    assert ours.state().exported is not None
    assert imported(ours).kept == ""
    assert ours.bases() == [0, 3]
    check_owner = Ledger(LedgerReader(ours.store), OwnerFile(ours.path))
    check_owner.start(Started(DIRECTORY_ID, 1, "host"))


def test_a_dry_run_changes_nothing(kafkas: ExportedBucket) -> None:
    before, objects = tree(kafkas.path), dict(kafkas.store.objects)
    assert imported(kafkas, is_dry=True).segments == 3
    assert (tree(kafkas.path), kafkas.store.objects) == (before, objects)


@pytest.mark.parametrize("is_applied", [False, True])
def test_after_a_kill_at_any_request_it_can_be_done_again(tmp_path: Path, is_applied: bool) -> None:
    at, is_killed = 0, True
    while is_killed:
        ours = handed_over(tmp_path / str(at))
        try:
            imported(ours, Bucket(URL, KillingStore(ours.store, at, is_applied=is_applied)))
            is_killed = False
        except Killed:
            imported(ours)
        check_ours(ours, [3, 6, 8])
        at += 1
    assert at > 10


def test_kafka_may_go_on_after_a_killed_import(
    kafkas: ExportedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has its segments already, and the directories are Kafka's still."""

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("mpbroker.migration.from_kafka.exchange", killed)
        with pytest.raises(Killed):
            imported(kafkas)
    assert kafkas.bases() == [3, 6, 8]
    kafkas.start_kafka(*kafkas.copied(10, 12))
    imported(kafkas)
    check_ours(kafkas, [3, 6, 8, 10])


def manifest(change: Callable[[bytes], bytes]) -> Callable[[ExportedBucket], None]:
    def apply(ours: ExportedBucket) -> None:
        name = ours.put(8, 10).objects.manifest
        ours.store.objects[name] = change(ours.store.objects[name])

    return apply


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (
            manifest(lambda body: body.replace(b'"compression":false', b'"compression":true')),
            "is compressed as",
        ),
        (
            manifest(lambda body: body[:-1] + b',"encryption":{"dataKey":"k","aad":"a"}}'),
            "00000000000000000008-.*rsm-manifest: the segment is encrypted",
        ),
        (manifest(lambda body: body.replace(b'"version":"1"', b'"version":"2"')), "it has version 2"),
        (manifest(lambda _: b"?"), "is no manifest that this version knows"),
        (manifest(lambda body: body.replace(b'"position":8', b'"position":9')), "lie in another order"),
        (manifest(lambda body: body.replace(b'Size":108', b'Size":107')), "its manifest 107"),
        (
            lambda ours: ours.store.delete([ours.put(8, 10).objects.indexes]),
            "indexes is not there. Kafka's records name its segment",
        ),
        (lambda ours: ours.start_kafka(*ours.copied(9, 12)), "log overlap"),
        (lambda ours: ours.start_kafka(b"?"), "cannot be read"),
    ],
)
def test_what_cannot_be_taken_over_is_named(
    kafkas: ExportedBucket, break_it: Callable[[ExportedBucket], None], says: str
) -> None:
    break_it(kafkas)
    objects = dict(kafkas.store.objects)
    with pytest.raises(CannotMove, match=says):
        imported(kafkas)
    assert kafkas.store.objects == objects
