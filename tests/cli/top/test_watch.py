"""Looks at real brokers: alive, jammed, killed, stopped, started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.cli.top.text import member_text
from mpbroker.cli.top.watch import BrokerFlags, GroupWatch, Watch
from mpbroker.observe import at_rest
from mpbroker.observe.model import Model
from mpbroker.observe.samples import BrokerSeen, Health, PartitionSeen, Sample
from mpbroker.testing import Broker
from shm import procfs
from tests.support.filled_broker import COMMITTED, RECORDS
from tests.support.group_members import member
from tests.support.polling import until
from tests.support.programs import stopped


def wanted(broker: Broker) -> BrokerFlags:
    return BrokerFlags(log_dirs=str(broker.log_dir))


def partition(sample: Sample, number: int) -> PartitionSeen:
    (found,) = [one for one in sample.partitions if (one.topic, one.partition) == ("orders", number)]
    return found


def test_a_running_broker_is_seen_as_a_whole(filled_broker: Broker) -> None:
    sample = Watch(wanted(filled_broker)).first()
    broker = sample.broker
    assert (broker.health, broker.pid, broker.note) == (Health.RUNNING, filled_broker.pid, "")
    assert broker.listeners == (f"PLAINTEXT://{filled_broker.bootstrap_servers}",)
    assert {"supervisor", "acceptor", "processor 0", "handler 0", "log 0", "coordinator"} <= {
        one.name for one in sample.processes
    }
    assert all(one.pid and one.pss_bytes and one.cpu_s is not None for one in sample.processes)
    assert partition(sample, 1).log_end_offset == RECORDS
    assert {one.topic for one in sample.partitions} == {"orders", "__consumer_offsets"}
    groups = GroupWatch(wanted(filled_broker))
    (billing,) = groups.groups(broker).groups
    groups.close()
    assert (billing.group, billing.state, billing.members) == ("billing", "Empty", 0)
    assert billing.committed == {("orders", 1): COMMITTED}


def test_memory_is_looked_up_seldom(filled_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel walks page tables for it."""
    looked: list[int] = []
    read = procfs.pss_bytes

    def counted(pid: int) -> int | None:
        looked.append(pid)
        return read(pid)

    monkeypatch.setattr(procfs, "pss_bytes", counted)
    monkeypatch.setattr("mpbroker.metrics.processes.MEMORY_EVERY_S", 3600.0)
    watch = Watch(wanted(filled_broker))
    pids = sorted(one.pid or 0 for one in watch.first().processes)
    assert all(one.pss_bytes for one in watch.sample().processes)
    assert sorted(looked) == pids


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_of_members_are_seen_before_anything_is_committed(
    filled_broker: Broker, protocol: str
) -> None:
    with member(filled_broker.bootstrap_servers, "young", "orders", group_protocol=protocol):
        broker = Watch(wanted(filled_broker)).first().broker
        groups = GroupWatch(wanted(filled_broker))
        (young,) = [one for one in groups.groups(broker).groups if one.group == "young"]
        groups.close()
    assert (young.type, young.members, young.committed) == (protocol, 1, {})
    assert young.assigned == {(one, number) for one, number in young.places} >= {("orders", 0), ("orders", 1)}


def test_a_broker_is_found_by_its_port_and_found_again(filled_broker: Broker) -> None:
    watch = Watch(BrokerFlags(bootstrap=filled_broker.bootstrap_servers))
    assert watch.first().broker.pid == filled_broker.pid
    filled_broker.stop(keep=True)
    assert watch.sample().broker.health is Health.STOPPED
    filled_broker.start()
    assert watch.sample().broker.pid == filled_broker.pid


def test_a_stopped_broker_shows_what_its_directories_have(filled_broker: Broker) -> None:
    filled_broker.stop(keep=True)
    watch = Watch(wanted(filled_broker))
    sample = watch.first()
    assert (sample.broker.health, sample.broker.note, sample.broker.node_id) == (Health.STOPPED, "", 1)
    assert (sample.counts, sample.processes) == (None, ())
    seen = partition(sample, 1)
    assert (seen.log_start_offset, seen.log_end_offset, seen.segments) == (0, RECORDS, 1)
    segment = next((filled_broker.log_dir / "orders-1").glob("*.log"))
    assert seen.size_bytes == segment.stat().st_size
    assert partition(sample, 0).log_end_offset == 0
    groups = watch.groups_at_rest()
    assert groups is not None
    assert [(one.group, one.members, one.committed) for one in groups.groups] == [
        ("billing", None, {("orders", 1): COMMITTED})
    ]


def test_a_stopped_broker_shows_what_members_of_the_consumer_protocol_have(filled_broker: Broker) -> None:
    static = {"group_protocol": "consumer", "group_instance_id": "one", "client_id": "reader"}
    with member(filled_broker.bootstrap_servers, "young", "orders", **static):
        pass
    filled_broker.stop(keep=True)
    watch, model = Watch(wanted(filled_broker)), Model()
    model.add(watch.first())
    groups = watch.groups_at_rest()
    assert groups is not None
    model.add_groups(groups)
    _, row = model.group_rows()
    assert (row["group"], row["type"], row["state"], row["members"]) == ("young", "consumer", "stopped", 1)
    assert (row["partitions"], row["uncommitted"], row["epoch"]) == (2, 2, row["target_epoch"])
    (one,) = model.members_of("young")
    lines = member_text(one).splitlines()
    assert lines[0].endswith(" (one, reader, 127.0.0.1)")
    assert [line.strip() for line in lines[1:]] == [
        "epoch -2, away; protocol consumer",
        "subscribes to orders",
        "has orders(0,1)",
        "target orders(0,1)",
    ]


def test_a_killed_broker_is_told_and_so_is_its_successor(filled_broker: Broker) -> None:
    watch = Watch(wanted(filled_broker))
    before = watch.first()
    filled_broker.kill()
    sample = watch.sample()
    assert sample.broker.health is Health.STOPPED
    assert "not clean" in sample.broker.note
    # No checkpoint is so young: this is what the segments have.
    assert partition(sample, 1).log_end_offset == RECORDS
    groups = watch.groups_at_rest()
    assert groups is not None
    assert [one.committed for one in groups.groups] == [{("orders", 1): COMMITTED}]
    filled_broker.start()
    after = watch.sample()
    assert after.broker.health is Health.RUNNING
    assert after.broker.pid != before.broker.pid
    assert partition(after, 1).log_end_offset == RECORDS
    assert watch.groups_at_rest() is None


def test_a_supervisor_that_hangs_keeps_nobody_from_looking(
    filled_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpbroker.observe.live.SUPERVISOR_PATIENCE_S", 0.2)
    watch = Watch(wanted(filled_broker))
    watch.first()
    with stopped(filled_broker.pid):
        sample = watch.sample()
    assert sample.broker.health is Health.SILENT
    assert "has not answered" in sample.broker.note
    assert partition(sample, 1).log_end_offset == RECORDS
    until(lambda: watch.sample().broker.health is Health.RUNNING, "it answers again")


def test_a_process_that_dies_is_seen_with_its_successor(filled_broker: Broker) -> None:
    watch = Watch(wanted(filled_broker))

    def handler() -> tuple[int | None, int]:
        (found,) = [one for one in watch.sample().processes if one.name == "handler 0"]
        return found.pid, found.restarts

    pid, restarts = handler()
    assert restarts == 0
    assert pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: handler()[1] == 1 and handler()[0] not in (None, pid), "it has a successor")


def test_a_directory_that_is_none_is_a_wrong_call(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="no broker is running on"):
        Watch(BrokerFlags(log_dirs=str(tmp_path))).first()
    with pytest.raises(CliError, match="is not there") as error:
        Watch(BrokerFlags(log_dirs=str(tmp_path / "none"))).first()
    assert error.value.exit_code == USAGE_ERROR


def test_a_directory_that_somebody_has_open_is_not_read(filled_broker: Broker) -> None:
    with pytest.raises(at_rest.NotAtRest, match=r"has .* open"):
        at_rest.sample([str(filled_broker.log_dir)])
    watch = Watch(wanted(filled_broker))
    watch.first()
    (filled_broker.log_dir / "mpbroker.json").unlink()
    watch._live = None
    sample = watch.sample()
    assert sample.broker.health is Health.UNKNOWN
    assert "no broker is running on" in sample.broker.note


def test_a_listener_that_does_not_answer_is_named(filled_broker: Broker) -> None:
    broker = Watch(wanted(filled_broker)).first().broker
    filled_broker.stop(keep=True)
    groups = GroupWatch(wanted(filled_broker))
    problem = groups.groups(broker).problem
    groups.close()
    assert filled_broker.bootstrap_servers in problem
    assert "--command-config" in problem


def test_the_environment_names_the_broker_unless_a_flag_does(
    filled_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories at rest are not shown in place of a broker that was named and is not there."""
    monkeypatch.setenv("MPBROKER_BOOTSTRAP_SERVER", filled_broker.bootstrap_servers)
    assert Watch(BrokerFlags()).first().broker.pid == filled_broker.pid
    assert GroupWatch(BrokerFlags()).groups(BrokerSeen(Health.RUNNING)).groups
    monkeypatch.setenv("MPBROKER_BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert Watch(wanted(filled_broker)).first().broker.pid == filled_broker.pid
    filled_broker.stop(keep=True)
    assert filled_broker.log_dir.name == "data"
    monkeypatch.chdir(filled_broker.log_dir.parent)
    with pytest.raises(CliError, match=r"no process listens on port 1 .*MPBROKER_BOOTSTRAP_SERVER"):
        Watch(BrokerFlags()).first()
