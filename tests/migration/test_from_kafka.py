"""`mpbroker import` of directories that Apache Kafka could have left: done, refused, killed half-way."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from msgspec import structs

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import migration
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.coordinator.metadata.metadata_records import FEATURE_LEVELS, build_metadata_batch, decode_record
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.ipc.process import FatalError
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.exchange import exchange
from mpbroker.migration.from_kafka import import_
from mpbroker.migration.kraft_snapshot import Voter, snapshot
from mpbroker.migration.metadata_log import read_image
from mpbroker.migration.snapshot_files import SnapshotId
from mpbroker.protocol.messages import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from mpbroker.records.iterate import iterate_batches
from mpbroker.startup.foreign_metadata import refuse_foreign_metadata
from mpbroker.storage import directory_lock, names
from mpbroker.storage.directory_layout import check_log_dirs, write_clean_shutdown
from mpbroker.storage.segments import batches_of
from tests.support.file_trees import tree
from tests.support.kafka_directory import NODE, KafkaDirectory, election, encoded, register
from tests.support.killed_moves import killed_at

SCRAM = UserScramCredentialRecord("alice", 1, b"salt", b"stored", b"server", 4096)
MORE = encoded(
    ConfigRecord(2, "orders", "retention.ms", "5"),
    ConfigRecord(4, "", "log.retention.ms", "7"),
    SCRAM,
    ProducerIdsRecord(NODE, 9, 3000),
)
OTHER_ID = "BBBBBBBBQACBBBBBBBBBBQ"


def state_of(metadata: Path) -> MetadataState:
    state = MetadataState()
    path = metadata / names.segment_name(0)
    with path.open("rb") as file:
        for batch in batches_of(file, path.stat().st_size):
            assert not batch.is_control
            assert batch.header.base_offset == state.next_offset
            state.apply_all([decode_record(record.value or b"") for record in batch.records()])
    return state


def check_ours(kafka: KafkaDirectory) -> None:
    refuse_foreign_metadata([str(kafka.path)])
    state = state_of(kafka.metadata)
    assert {topic.name: topic.partitions for topic in state.topics.values()} == {"orders": 2}
    assert state.ids["orders"] == kafka.topic_id("orders")
    assert state.topics[kafka.topic_id("orders")].configs == {"retention.ms": "5"}
    assert state.brokers == {"": {"log.retention.ms": "7"}}
    assert [name for name, _ in state.credentials] == ["alice"]
    assert (state.next_producer_id, state.features) == (3000, FEATURE_LEVELS)


def check_same(kafka: KafkaDirectory, before: dict[str, Any]) -> None:
    """Check that nothing came, went or changed but the times of directories in which something was made."""
    after = tree(kafka.path)
    assert after.keys() == before.keys()
    changed = {name for name in before if after[name] != before[name]}
    assert changed <= {"."}, changed


def refused(kafka: KafkaDirectory) -> str:
    """Return why an import is refused, which changes nothing."""
    before = tree(kafka.path)
    for is_dry in (True, False):
        with pytest.raises(CannotMove) as raised:
            import_([kafka.path], is_dry=is_dry)
    check_same(kafka, before)
    return str(raised.value)


def test_everything_is_taken_over(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path, more=MORE).write()
    theirs = (kafka.metadata / names.segment_name(0)).read_bytes()
    (tmp_path / names.DURABLE_MARK).touch()
    done = import_([tmp_path], is_dry=False)
    assert (done.topics, done.partitions, done.users, done.left) == (1, 2, 1, [])
    check_ours(kafka)
    assert not (tmp_path / names.DURABLE_MARK).exists()
    assert Path(done.kept).parent == tmp_path
    assert (Path(done.kept) / names.segment_name(0)).read_bytes() == theirs
    with pytest.raises(CannotMove, match="is mpbroker's already: start mpbroker on it"):
        import_([tmp_path], is_dry=False)


def test_each_partition_begins_an_epoch_as_at_an_election(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that saw Kafka stop know a later epoch than its log: the one without a leader."""
    kafka = KafkaDirectory(tmp_path)
    stopped = PartitionRecord(0, kafka.topic_id("orders"), [NODE], [NODE], leader=-1, leader_epoch=7)
    kafka.more = encoded(stopped)
    kafka.write()
    with monkeypatch.context() as patch:
        patch.setattr("mpbroker.migration.from_kafka.exchange", unable)
        with pytest.raises(CannotMove):
            import_([tmp_path], is_dry=False)
    import_([tmp_path], is_dry=False)
    begun = {
        record.partition_id: record.leader_epoch
        for _, _, record in read_image(kafka.metadata).all_partitions()
    }
    assert begun == {0: 8, 1: 4}
    for number, epoch in begun.items():
        path, config = tmp_path / names.partition_name("orders", number), resolve(BrokerConfig(), {})
        log = load(
            path, "orders", number, kafka.topic_id("orders"), config, Known(clean=True), lambda _: None
        )
        assert list(log.epochs) == [(0, 0), (3, 5), (epoch, 6)]
        log.close_cleanly()


def test_a_topic_may_be_called_as_our_files_are(tmp_path: Path) -> None:
    KafkaDirectory(tmp_path, more=MORE).write()
    (tmp_path / names.DURABLE_MARK).touch()
    partition = tmp_path / f"{names.OWN_PREFIX}events-0"
    partition.mkdir()
    (partition / names.segment_name(0)).touch()
    import_([tmp_path], is_dry=False, sets_strays_aside=True)
    assert (partition / names.segment_name(0)).exists()
    assert not (tmp_path / names.DURABLE_MARK).exists()


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path, more=MORE).write()
    before = tree(tmp_path)
    assert import_([tmp_path], is_dry=True).topics == 1
    assert tree(tmp_path) == before
    with pytest.raises(FatalError, match="mpbroker import"):
        refuse_foreign_metadata([str(kafka.path)])


def test_what_is_not_taken_over_is_listed(tmp_path: Path) -> None:
    kafka = KafkaDirectory(
        tmp_path,
        topics={"orders": [[NODE]], "gone": [[NODE]]},
        more=[
            *encoded(
                ConfigRecord(2, "orders", "min.insync.replicas", "2"),
                ConfigRecord(2, "orders", "no.such.setting", "1"),
                ConfigRecord(4, "1", "listener.name.secure.ssl.keystore.password", "hidden"),
                ConfigRecord(32, "group", "consumer.session.timeout.ms", "50000"),
                ConfigRecord(32, "group", "of.the.future", "1"),
            ),
            b"\x01\x7f\x00",
        ],
    ).write()
    kafka.make_partition("orders", 7)
    (kafka.path / "gone-0" / names.segment_name(0)).write_bytes(
        bytes(8) + (54).to_bytes(4) + bytes(4) + b"\1" + bytes(49)
    )
    left = "\n".join(import_([tmp_path], is_dry=True, sets_strays_aside=True).left)
    assert "1 records of type 127, which this version does not know" in left
    assert f"{tmp_path}/orders-7: it belongs to no topic" in left
    assert f"{tmp_path}/gone-0 begins with messages of before Kafka 0.11" in left
    assert "min.insync.replicas=2 of the topic orders: Invalid value 2" in left
    assert "no.such.setting=1 of the topic orders: Unknown topic config name" in left
    assert "listener.name.secure.ssl.keystore.password of the broker 1: it cannot" in left
    assert "of.the.future of the group group: it cannot" in left
    assert "consumer.session.timeout.ms" not in left
    assert "hidden" not in left


def test_other_nodes(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path, more=[register(2), register(3)]).write()
    assert "the cluster has other brokers too (node 2, 3). Move all partitions to node 1" in refused(kafka)


def test_other_replicas(tmp_path: Path) -> None:
    said = refused(KafkaDirectory(tmp_path, {"a": [[NODE]], "b": [[NODE, 2], [3]]}).write())
    assert "2 partitions have replicas on other nodes than 1: b-0 (1, 2), b-1 (3). Move them" in said


def test_tiered_storage(tmp_path: Path) -> None:
    more = encoded(ConfigRecord(2, "orders", "remote.storage.enable", "true"))
    says = "topics have records in an object store: orders. Import it, too, with mpbroker remote import"
    assert says in refused(KafkaDirectory(tmp_path, more=more).write())


def test_an_unclean_stop(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path).write()
    (tmp_path / names.CLEAN_SHUTDOWN).unlink()
    assert "was not closed in order" in refused(kafka)


def test_a_running_kafka(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path).write()
    with (tmp_path / ".lock").open("w") as lock:
        assert directory_lock.take(lock.fileno())
        assert f"a broker has {tmp_path} open. Stop it in order first" in refused(kafka)


def test_a_missing_partition(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path).write()
    shutil.rmtree(tmp_path / "orders-1")
    assert "the partition orders-1 is in none of" in refused(kafka)


def test_a_partition_of_another_topic(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path).write()
    path = tmp_path / "orders-1" / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAEQ")
    assert "it is of another topic of that name" in refused(kafka)


def voter() -> Voter:
    return Voter(NODE, bytes(16), "CONTROLLER", "localhost", 9093)


def with_snapshot(kafka: KafkaDirectory) -> tuple[Path, bytes]:
    """Let the log begin behind a snapshot, as Kafka's does after a while; return the snapshot."""
    image = read_image(kafka.metadata)
    (kafka.metadata / names.segment_name(0)).unlink()
    (kafka.metadata / names.segment_name(image.next_offset)).write_bytes(election(image.next_offset))
    path = kafka.metadata / SnapshotId(image.next_offset, image.epoch).file_name
    data = snapshot(image, voter(), 1)
    path.write_bytes(data)
    return path, data


def test_a_log_that_begins_behind_a_snapshot(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path, more=MORE).write()
    with_snapshot(kafka)
    import_([tmp_path], is_dry=False)
    check_ours(kafka)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_snapshot_without_its_end(tmp_path: Path, batches: int) -> None:
    kafka = KafkaDirectory(tmp_path, more=MORE).write()
    path, data = with_snapshot(kafka)
    found = list(iterate_batches(data))
    assert len(found) == 3
    path.write_bytes(data[: found[batches].header.position])
    assert f"the snapshot {path} has no end: restore it from a copy" in refused(kafka)


def test_metadata_without_a_log(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path).write()
    (kafka.metadata / names.segment_name(0)).unlink()
    assert f"{kafka.metadata} has no segment (*.log): restore it from a copy" in refused(kafka)


@pytest.mark.parametrize("data", [b"", election(0)], ids=["empty", "election"])
def test_a_log_without_records(tmp_path: Path, data: bytes) -> None:
    kafka = KafkaDirectory(tmp_path).write()
    (kafka.metadata / names.segment_name(0)).write_bytes(data)
    assert f"{kafka.metadata} has no records: restore it from a copy" in refused(kafka)


def test_partitions_that_the_metadata_do_not_know(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path, more=MORE).write()
    kafka.make_partition("orders", 7)
    said = refused(kafka)
    assert f"knows no topic of 1 partitions that are there: {tmp_path}/orders-7. It may be a copy" in said
    assert "With --set-aside-strays the import continues" in said
    import_([tmp_path], is_dry=False, sets_strays_aside=True)
    check_ours(kafka)


def test_partitions_and_no_topic(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path, {"orders": [[NODE]]}).write()
    values = [register(NODE)]
    (kafka.metadata / names.segment_name(0)).write_bytes(bytes(build_metadata_batch(values, 1, 0, 1)))
    (kafka.metadata / names.segment_name(1)).write_bytes(election(1))
    with pytest.raises(CannotMove, match="knows no topic of 1 partitions") as raised:
        import_([tmp_path], is_dry=False, sets_strays_aside=True)
    assert "--set-aside-strays" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"leaderId":"x"}', "\xff"])
def test_a_damaged_state_of_the_quorum(tmp_path: Path, text: str) -> None:
    kafka = KafkaDirectory(tmp_path).write()
    (kafka.metadata / names.QUORUM_STATE).write_text(text, "latin-1")
    assert f"{kafka.metadata / names.QUORUM_STATE} is not a state of a quorum: " in refused(kafka)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("node.id", "x", "node.id=x is not an id. Restore the file"),
        ("node.id", "-1", "node.id=-1 is not an id. Restore the file"),
        ("node.id", "²", "node.id=² is not an id. Restore the file"),
        ("directory.id", "x", "directory.id=x is not an id ("),
        ("directory.id", "ö", "directory.id=ö is not an id ("),
    ],
)
def test_damaged_properties(tmp_path: Path, key: str, value: str, says: str) -> None:
    kafka = KafkaDirectory(tmp_path).write()
    path = tmp_path / names.META_PROPERTIES
    path.write_text(re.sub(rf"(?m)^{re.escape(key)}=.*", f"{key}={value}", path.read_text()))
    assert f"{path}: {says}" in refused(kafka)


def test_a_directory_that_is_named_twice_is_one(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path / "data", more=MORE).write()
    (tmp_path / "link").symlink_to(kafka.path)
    done = import_([kafka.path, kafka.path, tmp_path / "link"], is_dry=False)
    assert done.log_dirs == [str(kafka.path)]
    check_ours(kafka)


def test_a_start_without_one_of_several_directories_is_refused(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path / "one", more=MORE).write()
    other = tmp_path / "two"
    other.mkdir()
    text = (kafka.path / names.META_PROPERTIES).read_text()
    (other / names.META_PROPERTIES).write_text(re.sub("directory.id=.*", f"directory.id={OTHER_ID}", text))
    write_clean_shutdown(other)
    (kafka.path / "orders-1").rename(other / "orders-1")
    import_([kafka.path, other], is_dry=False)
    config = structs.replace(BrokerConfig(), node_id=NODE)
    both = (str(kafka.path), str(other))
    assert check_log_dirs(structs.replace(config, log_dirs=both)).node_id == NODE
    with pytest.raises(FatalError, match=rf"{other} \(directory.id {OTHER_ID}\) is missing"):
        check_log_dirs(structs.replace(config, log_dirs=both[:1]))


def test_what_an_earlier_import_has_kept_stays(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path, more=MORE).write()
    first = import_([tmp_path], is_dry=False).kept
    theirs = tree(Path(first))
    shutil.rmtree(kafka.metadata)
    shutil.copytree(first, kafka.metadata)
    second = import_([tmp_path], is_dry=False).kept
    assert first != second
    assert tree(Path(first)) == theirs
    check_ours(kafka)


# ---- what fails half-way


def full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def unable(*_: object) -> NoReturn:
    raise CannotMove("the file system cannot exchange two directories in one step")


@pytest.mark.parametrize(
    ("part", "fails", "error"),
    [("exchange.exchange", unable, CannotMove), ("new_log.load", full, OSError)],
)
def test_a_failure_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, fails: Callable[..., Any], error: type
) -> None:
    kafka = KafkaDirectory(tmp_path, more=MORE).write()
    (tmp_path / names.DURABLE_MARK).touch()
    before = tree(tmp_path)
    monkeypatch.setattr(f"mpbroker.migration.{part}", fails)
    with pytest.raises(error):
        import_([tmp_path], is_dry=False)
    check_same(kafka, before)


def test_an_exchange_that_cannot_be_synced_keeps_kafkas_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = KafkaDirectory(tmp_path, more=MORE).write()
    theirs = tree(kafka.metadata)

    def exchanged(one: Path, other: Path) -> None:
        exchange(one, other)
        full()

    monkeypatch.setattr("mpbroker.migration.from_kafka.exchange", exchanged)
    with pytest.raises(OSError, match="No space left"):
        import_([tmp_path], is_dry=False)
    check_ours(kafka)
    assert [path for path in tmp_path.glob("*-stray") if tree(path) == theirs]


def test_metadata_that_contradict_themselves(tmp_path: Path) -> None:
    kafka = KafkaDirectory(tmp_path, more=encoded(TopicRecord("orders", bytes(range(16))))).write()
    assert "Kafka's metadata contradict themselves: " in refused(kafka)


def test_directories_that_are_none(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "missing", "is not there"), (tmp_path, f"has no {names.META_PROPERTIES}")):
        with pytest.raises(CannotMove, match=says):
            import_([path], is_dry=False)
    kafka = KafkaDirectory(tmp_path / "one").write()
    shutil.rmtree(kafka.metadata)
    with pytest.raises(CannotMove, match="no __cluster_metadata-0 in"):
        import_([kafka.path], is_dry=False)
    assert list(tmp_path.iterdir()) == [kafka.path]


def test_the_command_says_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    KafkaDirectory(tmp_path, more=MORE).write()
    migration.import_([tmp_path], dry_run=True, set_aside_strays=False, json=False)
    assert capsys.readouterr().out.endswith("Nothing was changed.\n")
    migration.import_([tmp_path], dry_run=False, set_aside_strays=False, json=False)
    printed = capsys.readouterr().out
    assert "imported: 1 topic with 2 partitions, 1 SCRAM user, 0 ACLs, 0 quotas" in printed
    assert f"mpbroker serve --log-dirs {tmp_path} -o node.id=1" in printed
    with pytest.raises(CliError, match=r"is mpbroker's already.* Nothing was changed"):
        migration.import_([tmp_path], dry_run=False, set_aside_strays=False, json=False)


# ---- kills


def test_a_kill_at_any_step_leaves_kafkas_directory_or_ours(tmp_path: Path) -> None:
    """And in either case the import can be done again, or is done."""
    kafkas, ours, step = 0, 0, 0
    is_killed = True
    while is_killed:
        kafka = KafkaDirectory(tmp_path / str(step), more=MORE).write()
        theirs = tree(kafka.metadata)
        is_killed = killed_at(lambda path=kafka.path: import_([path], is_dry=False), step)
        step += 1
        if tree(kafka.metadata) == theirs:
            kafkas += 1
            import_([kafka.path], is_dry=False)
        else:
            ours += 1
        check_ours(kafka)
        assert [path for path in kafka.path.glob("*-stray") if tree(path) == theirs]
        shutil.rmtree(kafka.path)
    assert kafkas > 10
    assert ours > 1
