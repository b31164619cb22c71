"""`mpbroker remote import`: segments that Kafka has uploaded enter the ledger under their names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import migration
from mpbroker.migration.bucket_export import Bucket
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.from_kafka import Import, import_
from mpbroker.migration.segment_records import SEGMENTS_TOPIC
from mpbroker.migration.to_kafka import export
from mpbroker.protocol.messages import RemoveTopicRecord
from mpbroker.remote.ledger.events import Shipped
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.remote.store.self_test import StoreUnfit, check_store
from mpbroker.startup.foreign_metadata import refuse_foreign_metadata
from mpbroker.storage.names import REMOTE_OWNER
from mpbroker.storage.remote_segments import read_remote_segments
from shm.clock import wall_ms
from tests.migration.test_bucket_export import few_partitions as few_partitions
from tests.support.exported_bucket import URL, ExportedBucket
from tests.support.fault_store import FaultStore
from tests.support.file_trees import tree
from tests.support.forms import rounds
from tests.support.killed_moves import killed_at
from tests.support.killing_store import Killed, KillingStore

# Each step in the long form.
STEP = 200 // rounds(200)


@pytest.fixture(autouse=True)
def fit_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the store makes many requests, and has tests of its own."""
    monkeypatch.setattr("mpbroker.migration.bucket_import.check_store", lambda _store: None)


def handed_over(path: Path, directory: DirectoryStore | None = None) -> ExportedBucket:
    """Return a Kafka's directory and bucket: it has deleted the first segment, and copied two more."""
    made = ExportedBucket(path, directory=directory)
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
    ours.started()


def test_segments_enter_the_ledger_under_their_names(kafkas: ExportedBucket) -> None:
    objects = {name: body for name, body in kafkas.memory.objects.items() if not name.startswith("mpbroker/")}
    done = imported(kafkas)
    assert (done.topics, done.segments, done.left) == (1, 3, [])
    check_ours(kafkas, [3, 6, 8])
    assert objects.items() <= kafkas.memory.objects.items()
    new = kafkas.state().segments_of(kafkas.topic_id, 0)[-1]
    assert (new.end, new.log_crc, new.epochs) == (10, None, ((3, 8),))
    assert new.may_be_log(5)
    with pytest.raises(CannotMove, match="belongs to a broker of mpbroker, and was not exported"):
        imported(kafkas)


def test_segments_that_kafka_has_copied_once_more_replace_the_former_ones(tmp_path: Path) -> None:
    """As it does where a topic's tiering is turned off, with its segments, and on again."""
    made = ExportedBucket(tmp_path / "data")
    export([made.path], ("localhost", 9093), is_dry=False, bucket=made.bucket)
    finished = [made.copied(*offsets)[1] for offsets in ((0, 3), (3, 6))]
    deleted = [one[:-2] + bytes([state, 0]) for one in finished for state in (2, 3)]
    made.start_kafka(*deleted, *made.copied(3, 6, segment_id=b"another segment!"))
    imported(made)
    check_ours(made, [3])
    assert made.state().segments_of(made.topic_id, 0)[0].segment_id == b"another segment!"


def test_a_topic_that_kafka_has_deleted_leaves_the_ledger(kafkas: ExportedBucket) -> None:
    topic_id = kafkas.topic_id
    kafkas.append(RemoveTopicRecord(topic_id))
    for path in kafkas.path.glob("orders-*"):
        shutil.rmtree(path)
    imported(kafkas)
    state = kafkas.state()
    assert (state.topics, state.segments) == ({}, {})
    assert sorted(one.segment.base for one in state.removed.values()) == [0, 3]


def test_a_bucket_that_had_no_ledger_gets_one(kafkas: ExportedBucket) -> None:
    for name in [name for name in kafkas.memory.objects if name.startswith("mpbroker/")]:
        del kafkas.memory.objects[name]
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
    ours.started()


def test_an_export_that_a_kafka_has_used_elsewhere_is_not_taken_back(tmp_path: Path) -> None:
    """These directories are an older copy: the ledger would lack what Kafka has uploaded."""
    ours = ExportedBucket(tmp_path / "data")
    ours.put(6, 8)
    export([ours.path], ("localhost", 9093), is_dry=False, bucket=ours.bucket)
    assert imported(ours, is_dry=True).segments == 2, "an upload that was given up is older"
    ours.memory.now_ms = wall_ms() + 1_000
    ours.put(6, 8)
    with pytest.raises(CannotMove, match=r" is younger than the export: .* Import those"):
        imported(ours)


@pytest.mark.parametrize("has_owner", [True, False])
def test_an_export_is_not_taken_back_by_an_older_copy(tmp_path: Path, has_owner: bool) -> None:
    """The segment would have offsets that its log lacks."""
    ours, older = ExportedBucket(tmp_path / "data"), tmp_path / "older"
    shutil.copytree(ours.path, older)
    if not has_owner:
        (older / REMOTE_OWNER).unlink()
    ours.started().append([ours.put(6, 8)])
    export([ours.path], ("localhost", 9093), is_dry=False, bucket=ours.bucket)
    with pytest.raises(CannotMove, match="or these are an older copy"):
        import_([older], is_dry=False, bucket=ours.bucket)
    assert imported(ours).segments == 3


def test_a_copy_of_just_before_the_export_takes_it_back(tmp_path: Path) -> None:
    ours, copy = ExportedBucket(tmp_path / "data"), tmp_path / "copy"
    shutil.copytree(ours.path, copy)
    export([ours.path], ("localhost", 9093), is_dry=False, bucket=ours.bucket)
    assert import_([copy], is_dry=False, bucket=ours.bucket).segments == 2


def test_what_was_shipped_since_the_newest_cut_is_kept(tmp_path: Path) -> None:
    """A restore needs it until the next cut."""
    ours = ExportedBucket(tmp_path / "data")
    ours.started().append([Shipped(1, (), b"")])
    export([ours.path], ("localhost", 9093), is_dry=False, bucket=ours.bucket)
    imported(ours)
    assert ours.state().shipped_numbers == {1}


def test_a_prefix_that_another_cluster_uses_is_refused(kafkas: ExportedBucket) -> None:
    foreign = replace(kafkas.put(0, 3), topic_id=b"f" * 16).objects.log
    kafkas.memory.put(foreign, [], 0)
    with pytest.raises(CannotMove, match=rf"{foreign} is of a topic that this Kafka does not have"):
        imported(kafkas)


def test_a_dry_run_changes_nothing(kafkas: ExportedBucket) -> None:
    before, objects = tree(kafkas.path), dict(kafkas.memory.objects)
    assert imported(kafkas, is_dry=True).segments == 3
    assert (tree(kafkas.path), kafkas.memory.objects) == (before, objects)


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


def test_after_a_kill_at_any_step_it_can_be_done_again(tmp_path: Path) -> None:
    for step in count(0, STEP):
        store = tmp_path / str(step) / "store"
        store.mkdir(parents=True)
        ours = handed_over(store.with_name("data"), DirectoryStore(store))
        if not killed_at(lambda ours=ours: imported(ours), step):
            break
        imported(ours)
        check_ours(ours, [3, 6, 8])
    assert step > 60


def test_a_store_that_breaks_its_promises_is_not_taken(
    kafkas: ExportedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpbroker.migration.bucket_import.check_store", check_store)
    monkeypatch.setattr(kafkas.memory, "create", lambda *_: True)
    with pytest.raises(StoreUnfit):
        imported(kafkas)
    assert kafkas.state().exported is not None


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
        ours.memory.objects[name] = change(ours.memory.objects[name])

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
    objects = dict(kafkas.memory.objects)
    with pytest.raises(CannotMove, match=says):
        imported(kafkas)
    assert kafkas.memory.objects == objects


def test_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    url, ours = f"file://{store}", ExportedBucket(tmp_path / "data", directory=DirectoryStore(store))
    migration.remote_export([ours.path], url, dry_run=True)
    printed = capsys.readouterr().out
    back = f"taken back with\n  mpbroker remote import --url {url} {ours.path}\n"
    assert "The ledger would be closed" in printed
    assert printed.endswith(f"{back}Nothing was changed.\n")
    migration.remote_export([ours.path], url)
    printed = capsys.readouterr().out
    assert "The ledger is closed" in printed
    assert printed.endswith(back)
    assert f"{ours.path}/__remote_log_metadata-0 to __remote_log_metadata-" in printed
    with pytest.raises(CliError, match=r"mpbroker's already.* take it back with mpbroker remote import"):
        migration.import_([ours.path])
    assert "0 delegation tokens, 2 segments in the object store\n" in printed
    assert f"  rsm.config.storage.root={store}\n" in printed
    with monkeypatch.context() as patch:
        unfit = Mock(side_effect=StoreUnfit("it overwrites"))
        patch.setattr("mpbroker.migration.bucket_import.check_store", unfit)
        with pytest.raises(CliError, match=r"store: it overwrites$"):
            migration.remote_import([ours.path], url)
    migration.remote_import([ours.path], url)
    printed = capsys.readouterr().out
    assert f"-o remote.log.storage.system.enable=true -o mpbroker.remote.url={url}\n" in printed
    assert "Kafka's metadata" not in printed
    ours.started()
    with pytest.raises(CliError, match=r"and was not exported.* stay whose they were"):
        migration.remote_import([ours.path], url)
    with pytest.raises(CliError, match="--url names no store"):
        migration.remote_export([ours.path], "bucket")
    down = FaultStore(ours.store)
    down.is_down = True
    monkeypatch.setattr(migration, "open_store", lambda *_: down)
    with pytest.raises(CliError, match="Run the same command again when the object store answers"):
        migration.remote_export([ours.path], url)
