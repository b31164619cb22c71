"""Flags of tiered topics in the partition table, and the words beside it."""

from __future__ import annotations

import msgspec
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.table import PartitionFlag, version_of, word_of
from mpbroker.log.manager.tiering import NOT_TIERED, tiering
from mpbroker.protocol.topic_names import GROUP_TOPIC
from tests.support.log_node import MakeNode
from tests.support.log_rig import MakeRig, ensure
from tests.support.log_writer import make_batch, topic_config
from tests.support.stepped_log import Broker

ON = BrokerConfig(remote_log_storage_system_enable=True, mpbroker_remote_url="file:///b")
LIVE, TIERED = PartitionFlag.PARTITION_LIVE, PartitionFlag.PARTITION_TIERED
COPY_DISABLED, REMOTE_DELETED = PartitionFlag.PARTITION_COPY_DISABLED, PartitionFlag.PARTITION_REMOTE_DELETED
OPTIONS = {"remote_log_storage_system_enable": True, "mpbroker_remote_url": "file:///b"}


@pytest.mark.parametrize(
    ("own", "flags"),
    [
        ({}, NOT_TIERED),
        ({"remote_storage_enable": "true"}, TIERED),
        ({"remote_storage_enable": "true", "cleanup_policy": ""}, TIERED),
        ({"remote_storage_enable": "true", "cleanup_policy": "compact,delete"}, NOT_TIERED),
        ({"remote_storage_enable": "true", "remote_log_copy_disable": "true"}, TIERED | COPY_DISABLED),
        ({"remote_storage_enable": "true", "remote_log_delete_on_disable": "true"}, TIERED),
        ({"remote_log_delete_on_disable": "true"}, REMOTE_DELETED),
        ({"remote_log_copy_disable": "true"}, NOT_TIERED),
    ],
)
def test_flags_by_settings(own: dict[str, str], flags: PartitionFlag) -> None:
    config = topic_config(**own)
    assert tiering("t", config, ON) == flags
    for name, broker in (("t", BrokerConfig()), (GROUP_TOPIC, ON), ("__cluster_metadata", ON)):
        assert tiering(name, config, broker) == NOT_TIERED


def altered(broker: Broker, version: int, **configs: str) -> int:
    broker.process.manager.ensure(msgspec.structs.replace(ensure(1, **configs), config_version=version))
    return broker.rig.partition(broker.targets[0][0]).flags


def test_flags_follow_the_settings_and_appends_go_on(rig: MakeRig) -> None:
    b = Broker(rig(**OPTIONS))
    slot = b.targets[0][0]
    assert b.rig.partition(slot).flags == LIVE
    wanted = (
        ({"remote_storage_enable": "true"}, LIVE | TIERED),
        ({"remote_storage_enable": "true", "remote_log_copy_disable": "true"}, LIVE | TIERED | COPY_DISABLED),
        ({"remote_log_delete_on_disable": "true"}, LIVE | REMOTE_DELETED),
        ({}, LIVE),
    )
    for version, (configs, flags) in enumerate(wanted, 6):
        assert altered(b, version, **configs) == flags
        log = b.process.manager.logs[slot]
        assert (log.state.flags, log.state.tiering) == (LIVE, flags & ~LIVE)
        assert b.process.manager.is_served(log)
        (result,) = b.produce(bytes(make_batch()))
        assert result.error == 0
        assert b.rig.partition(slot).flags == flags


def test_appends_of_tiered_partitions_are_the_turns(rig: MakeRig) -> None:
    """An append that Python has to do is ten times slower."""
    b = Broker(rig(**OPTIONS), remote_storage_enable="true")
    b.produce(bytes(make_batch()))
    b.process._append = None  # type: ignore[assignment,method-assign]
    (result,) = b.produce(bytes(make_batch()))
    assert result.error == 0


def test_a_policy_inherited_from_the_broker(rig: MakeRig) -> None:
    b = Broker(rig(**OPTIONS), remote_storage_enable="true")
    msgspec.structs.force_setattr(b.process.manager.config, "log_cleanup_policy", ("compact",))
    b.process.manager.follow_settings()
    assert b.rig.partition(b.targets[0][0]).flags == LIVE


def test_flags_outlast_what_happens_to_the_partition(node: MakeNode) -> None:
    """The tier must know what an offline partition is, and a successor publishes it at once."""
    n = node()
    n.boot(**OPTIONS)
    tiered = ensure(1, remote_storage_enable="true")
    (target,) = n.open(tiered)
    n.succeed()
    assert n.open(tiered) == [target]
    assert n.rig.partition(target.slot).flags == LIVE | TIERED
    n.process.turn.storage_failed(0, 5)
    n.process.turn.run(0)
    assert n.rig.partition(target.slot).flags == PartitionFlag.PARTITION_OFFLINE | TIERED


def test_a_word_is_of_one_generation(rig: MakeRig) -> None:
    words = rig().memory.words("remote")
    words.store(7, word_of(3, 9))
    assert (version_of(words.load(7), 3), version_of(words.load(7), 4)) == (9, 0)
    assert words.load(8) == 0
