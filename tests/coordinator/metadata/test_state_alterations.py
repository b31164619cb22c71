"""Altered settings of topics, and topics that get more partitions: Kafka's codes, and who sees what."""

from __future__ import annotations

import os
import signal
from typing import Any

import msgspec
import pytest

from mpbroker.config import dynamic
from mpbroker.coordinator.metadata.broker_rules import BROKERS_BYTES_MAX
from mpbroker.coordinator.metadata.topic_rules import CONFIG_VALUE_LENGTH_MAX
from mpbroker.ipc.broker_settings import BrokerSettings
from mpbroker.ipc.bulletin import BulletinPublisher, BulletinReader
from mpbroker.ipc.calls import (
    Account,
    AlteredResources,
    AlterSettings,
    ConfigAlteration,
    ConfigChange,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
)
from mpbroker.ipc.topology import SUPERVISOR, SharedMemory
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConfigRecord
from mpbroker.protocol.numbers import ConfigOperation, ConfigResourceType
from mpbroker.quotas.entities import USER, QuotaTable
from mpbroker.quotas.mutations import Mutations
from shm.word import Words
from tests.support.coordinator_tree import CoordinatorTree
from tests.support.decider_rig import DeciderRig

SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT
INVALID_CONFIG, UNKNOWN_TOPIC, INVALID_PARTITIONS, INVALID_ASSIGNMENT = 40, 3, 37, 39


def alteration(*changes: tuple[str, int, str | None], replaces: bool = False) -> ConfigAlteration:
    return ConfigAlteration("a", [ConfigChange(*change) for change in changes], replaces)


def room_with(**configs: str) -> DeciderRig:
    rig = DeciderRig()
    settings: dict[str, str | None] = {key.replace("_", "."): value for key, value in configs.items()}
    rig.create(CreateTopic("a", 2, configs=settings))
    return rig


def alter(
    rig: DeciderRig, *of: ConfigAlteration, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    return rig.results(AlterSettings(list(of), validate_only))


def configs_of(rig: DeciderRig) -> dict[str, str]:
    return rig.state.topics[rig.state.ids["a"]].configs


def test_settings_are_set_changed_and_removed() -> None:
    rig = room_with(retention_ms="5", segment_ms="7")
    version = rig.state.topics[rig.state.ids["a"]].config_version
    changes = (("retention.ms", SET, "6"), ("segment.ms", DELETE, None), ("max.message.bytes", SET, "900"))
    assert alter(rig, alteration(*changes)) == [(0, None)]
    assert configs_of(rig) == {"retention.ms": "6", "max.message.bytes": "900"}
    assert rig.state.topics[rig.state.ids["a"]].config_version == version + 3
    offset = rig.state.next_offset
    # What is so already is no change; neither is what is removed and was not there.
    assert alter(rig, alteration(("retention.ms", SET, "6"), ("flush.ms", DELETE, None))) == [(0, None)]
    assert rig.state.next_offset == offset


def test_settings_are_replaced() -> None:
    rig = room_with(retention_ms="5", segment_ms="7")
    assert alter(rig, alteration(("retention.ms", SET, "5"), replaces=True)) == [(0, None)]
    assert configs_of(rig) == {"retention.ms": "5"}
    assert alter(rig, alteration(replaces=True)) == [(0, None)]
    assert configs_of(rig) == {}


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, APPEND, "compact", "delete,compact"),
        ("compact", APPEND, "delete", "compact,delete"),
        ("compact", APPEND, "compact", "compact"),
        ("compact,delete", SUBTRACT, "delete", "compact"),
        (None, SUBTRACT, "compact", "delete"),
    ],
)
def test_parts_of_lists(before: str | None, operation: int, value: str, after: str) -> None:
    rig = room_with(**({"cleanup_policy": before} if before else {}))
    assert alter(rig, alteration(("cleanup.policy", operation, value))) == [(0, None)]
    assert configs_of(rig) == {"cleanup.policy": after}


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (("retention.ms", SET, "soon"), INVALID_CONFIG, "Invalid value soon for configuration retention.ms"),
        (("retention.mss", SET, "1"), INVALID_CONFIG, "Unknown topic config name: retention.mss"),
        (("retention.ms", APPEND, "1"), INVALID_CONFIG, "Can't APPEND to key retention.ms because"),
        (("nonsense", SUBTRACT, "1"), INVALID_CONFIG, "Can't SUBTRACT to key nonsense because"),
        (("min.compaction.lag.ms", SET, "9223372036854775807"), 0, None),
        (("retention.ms", SET, "1" * 40_000), INVALID_CONFIG, "exceeds the maximum value size of 32767"),
    ],
)
def test_what_cannot_be_set(change: tuple[str, int, str], code: int, says: str | None) -> None:
    rig = room_with(retention_ms="5")
    ((error, message),) = alter(rig, alteration(change))
    assert error == code
    assert message is None if says is None else says in (message or "")
    if error:
        assert configs_of(rig) == {"retention.ms": "5"}


def test_one_topic_does_not_harm_another() -> None:
    rig = room_with()
    none = ConfigAlteration("b", [ConfigChange("retention.ms", SET, "1")])
    results = alter(rig, none, alteration(("retention.ms", SET, "1")))
    assert results == [(UNKNOWN_TOPIC, "The topic 'b' does not exist."), (0, None)]
    assert configs_of(rig) == {"retention.ms": "1"}


def test_only_validated_nothing_changes() -> None:
    rig = room_with()
    before = rig.state.draft()
    assert alter(rig, alteration(("retention.ms", SET, "1")), validate_only=True) == [(0, None)]
    assert rig.call(CreatePartitions([MorePartitions("a", 5)], True)) == AlteredResources([(0, None)])
    assert rig.state == before


def test_more_partitions() -> None:
    rig = room_with()
    assert rig.call(CreatePartitions([MorePartitions("a", 5)])) == AlteredResources([(0, None)])
    assert rig.state.topics[rig.state.ids["a"]].partitions == 5
    assert rig.state.partitions == 5


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (MorePartitions("b", 5), UNKNOWN_TOPIC, "This server does not host"),
        (MorePartitions("a", 2), INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
        (
            MorePartitions("a", 1),
            INVALID_PARTITIONS,
            "The topic a currently has 2 partition(s); 1 would not be an increase.",
        ),
        (MorePartitions("a", 101), INVALID_PARTITIONS, "has room for 100 partitions"),
        (MorePartitions("a", 20_000), 44, "and 10000 at most"),
        (MorePartitions("a", 4, [[1]]), INVALID_ASSIGNMENT, "2 additional partition(s), but only 1 assig"),
        (MorePartitions("a", 3, [[2]]), INVALID_ASSIGNMENT, "broker 2, but no such broker is registered"),
        (MorePartitions("a", 3, [[]]), INVALID_ASSIGNMENT, "an empty replica list"),
        (MorePartitions("__consumer_offsets", 9), INVALID_PARTITIONS, "follows from their number"),
        (MorePartitions("__transaction_state", 9), INVALID_PARTITIONS, "follows from their number"),
    ],
)
def test_partitions_that_cannot_be(more: MorePartitions, code: int, says: str) -> None:
    rig = room_with()
    rig.create(CreateTopic("__consumer_offsets", 3), automatic=True)
    rig.create(CreateTopic("__transaction_state", 3), automatic=True)
    before = rig.state.draft()
    ((error, message),) = rig.results(CreatePartitions([more]))
    assert (error, says in (message or "")) == (code, True), message
    assert rig.state == before


def test_an_assignment_of_the_only_broker() -> None:
    rig = room_with()
    assert rig.call(CreatePartitions([MorePartitions("a", 4, [[1], [1]])])) == AlteredResources([(0, None)])


# ---- the process ----


def altered_to(tree: CoordinatorTree, *changes: tuple[str, int, str | None]) -> None:
    assert tree.ask(AlterSettings([alteration(*changes)])) == AlteredResources([(0, None)])


def test_what_is_altered_is_seen_by_all_before_it_is_answered(tree: CoordinatorTree) -> None:
    tree.ask(CreateTopics([CreateTopic("a", 1, configs={"retention.ms": "7"})]))
    asked = len(tree.log.ensured)
    altered_to(tree, ("retention.ms", SET, "8"), ("segment.ms", SET, "9"))
    # The log process was told first.
    assert tree.log.ensured[asked:] == ["a"]
    tree.pump()
    for fake in tree.handlers:
        image = fake.topics["a"]
        assert image.configs == {"retention.ms": "8", "segment.ms": "9"}
        assert image.config_version == 3
    assert tree.log.new == ["a"]


def test_more_partitions_are_seen_by_all_before_it_is_answered(tree: CoordinatorTree) -> None:
    tree.ask(CreateTopics([CreateTopic("a", 1)]))
    assert tree.ask(CreatePartitions([MorePartitions("a", 3)])) == AlteredResources([(0, None)])
    tree.pump()
    for fake in tree.handlers:
        found = [(p.partition, p.slot, p.slot_generation) for p in fake.topics["a"].partitions.values()]
        assert found == [(0, 1, 1), (1, 2, 1), (2, 3, 1)]


def test_alterations_outlive_both_deaths(tree: CoordinatorTree) -> None:
    tree.ask(CreateTopics([CreateTopic("a", 1)]))
    altered_to(tree, ("retention.ms", SET, "8"))
    tree.ask(CreatePartitions([MorePartitions("a", 2)]))
    tree.replace_log()
    altered_to(tree, ("retention.ms", SET, "9"))
    tree.replace(2)
    altered_to(tree, ("segment.ms", SET, "1"))
    tree.pump()
    for fake in tree.handlers:
        assert fake.topics["a"].configs == {"retention.ms": "9", "segment.ms": "1"}
        assert len(fake.topics["a"].partitions) == 2


@pytest.mark.parametrize("step", ["taken", "written", "published", "ensuring"])
def test_the_log_process_dies_on_the_way(tree: CoordinatorTree, step: str) -> None:
    """Check that an alteration is decided anew or found in the log, answered once, and true when answered."""
    tree.ask(CreateTopics([CreateTopic("a", 1)]))
    tree.log.dies_at = step
    altered_to(tree, ("retention.ms", SET, "8"))
    assert tree.log_lives == 2
    tree.log.dies_at = step
    assert tree.ask(CreatePartitions([MorePartitions("a", 3)])) == AlteredResources([(0, None)])
    assert tree.log_lives == 3
    tree.pump()
    for fake in tree.handlers:
        assert fake.topics["a"].configs == {"retention.ms": "8"}
        assert len(fake.topics["a"].partitions) == 3


def test_altered_again_while_it_is_opened_and_deleted_in_between(tree: CoordinatorTree) -> None:
    tree.ask(CreateTopics([CreateTopic("a", 1), CreateTopic("b", 1)]))
    calls = [
        AlterSettings([ConfigAlteration("a", [ConfigChange("retention.ms", SET, "1")])]),
        AlterSettings([ConfigAlteration("a", [ConfigChange("retention.ms", SET, "2")])]),
        AlterSettings([ConfigAlteration("b", [ConfigChange("retention.ms", SET, "3")])]),
        DeleteTopics(["b"]),
        CreatePartitions([MorePartitions("a", 2)]),
    ]
    fake = tree.handlers[0]
    sent = [fake.call(call) for call in calls]
    tree.until(lambda: all(request in fake.answers for request in sent))
    for request in (*sent[:3], sent[4]):
        assert fake.answers[request] == AlteredResources([(0, None)])
    tree.pump()
    assert set(fake.topics) == {"a"}
    assert fake.topics["a"].configs == {"retention.ms": "2"}
    assert len(fake.topics["a"].partitions) == 2
    assert tree.stop() == 0


def test_partitions_cost_what_the_quota_says() -> None:
    rig = room_with()
    rig.decider._mutations = Mutations(1, lambda: 0)
    rig.state.quotas = QuotaTable()
    rig.state.quotas.change(((USER, "ann"),), "controller_mutation_rate", 1.0)

    def ask(count: int) -> Any:
        return rig.call(CreatePartitions([MorePartitions("a", count)], False, Account("ann", "c", True)))

    assert ask(10).results == [(0, None)]
    answer = ask(12)
    assert answer.results[0][0] == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert answer.throttle_ms > 0


def test_records_are_those_that_kafka_writes() -> None:
    rig = room_with(retention_ms="5")
    decided = rig.decider.decide(
        rig.state,
        AlterSettings([alteration(("retention.ms", DELETE, None), ("segment.ms", SET, "4"))]),
    )
    assert decided.records == [
        ConfigRecord(2, "a", "retention.ms", None),
        ConfigRecord(2, "a", "segment.ms", "4"),
    ]


# ---- settings of brokers ----


def of_broker(name: str, *changes: tuple[str, int, str | None], replaces: bool = False) -> ConfigAlteration:
    made = [ConfigChange(*change) for change in changes]
    return ConfigAlteration(name, made, replaces, ConfigResourceType.BROKER)


def test_settings_of_brokers_are_recorded_as_kafka_does(rig: DeciderRig) -> None:
    call = AlterSettings(
        [
            of_broker("1", ("max.connections", SET, "5"), ("log.retention.ms", SET, "7")),
            of_broker("", ("log.cleanup.policy", APPEND, "compact"), ("max.connections", DELETE, None)),
        ]
    )
    decided = rig.decider.decide(rig.state, call)
    assert decided.records == [
        ConfigRecord(4, "1", "max.connections", "5"),
        ConfigRecord(4, "1", "log.retention.ms", "7"),
        ConfigRecord(4, "", "log.cleanup.policy", "delete,compact"),
    ]
    assert decided.brokers_version == 3
    rig.call(call)
    # A part of what all brokers have.
    rig.call(AlterSettings([of_broker("1", ("log.cleanup.policy", SUBTRACT, "delete"))]))
    rig.call(AlterSettings([of_broker("1", ("log.retention.ms", DELETE, None))]))
    assert rig.state.brokers == {
        "1": {"max.connections": "5", "log.cleanup.policy": "compact"},
        "": {"log.cleanup.policy": "delete,compact"},
    }
    again = rig.decider.decide(rig.state, AlterSettings([of_broker("1", ("max.connections", SET, "5"))]))
    assert (again.records, again.brokers_version) == ([], 0)
    rig.call(AlterSettings([of_broker("1", replaces=True)], validate_only=True))
    assert rig.state.brokers["1"]
    rig.call(AlterSettings([of_broker("1", replaces=True)]))
    assert rig.state.brokers["1"] == {}


def test_a_value_is_judged_by_what_it_makes_of_the_whole() -> None:
    rig = DeciderRig(num_io_threads=2)
    min_lag, max_lag = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"

    def error_of(of: ConfigAlteration) -> int:
        return alter(rig, of)[0][0]

    assert error_of(of_broker("", (max_lag, SET, "100"))) == 0
    assert error_of(of_broker("1", (min_lag, SET, "101"))) == ErrorCode.INVALID_REQUEST
    assert error_of(of_broker("1", (max_lag, SET, "200"), (min_lag, SET, "101"))) == 0
    # What lies beneath comes up when it is taken back.
    assert error_of(of_broker("1", (max_lag, DELETE, None))) == ErrorCode.INVALID_REQUEST
    assert error_of(of_broker("1", (max_lag, DELETE, None), (min_lag, DELETE, None))) == 0
    assert error_of(of_broker("", ("num.io.threads", SET, "17"))) == ErrorCode.INVALID_REQUEST
    assert error_of(of_broker("1", ("num.io.threads", SET, "10"))) == 0
    assert error_of(of_broker("1", ("num.io.threads", SET, "21"))) == ErrorCode.INVALID_REQUEST
    assert error_of(of_broker("1", ("num.io.threads", SET, "20"))) == 0  # whether ten are there yet or not
    # Beneath the broker's own it changes nothing now.
    assert error_of(of_broker("", ("num.io.threads", SET, "21"))) == 0
    assert error_of(of_broker("1", ("max.connections", SET, "1" * 40_000))) == ErrorCode.INVALID_REQUEST


def test_what_fits_into_no_bulletin_is_refused(rig: DeciderRig) -> None:
    # Of a version that knows more settings.
    rig.state.brokers["1"] = {f"of.the.future.{n}": "x" * CONFIG_VALUE_LENGTH_MAX for n in range(100)}
    ((error, text),) = alter(rig, of_broker("", ("max.connections", SET, "5")))
    assert error == ErrorCode.POLICY_VIOLATION
    assert f"at most {BROKERS_BYTES_MAX} fit. Delete settings without effect" in (text or "")
    # They can be deleted one by one.
    assert alter(rig, of_broker("1", ("of.the.future.0", DELETE, None))) == [(0, None)]


def test_all_settings_of_brokers_at_their_longest_fit_into_a_bulletin() -> None:
    longest = dict.fromkeys(dynamic.DYNAMIC, "x" * CONFIG_VALUE_LENGTH_MAX)
    told = msgspec.msgpack.encode(BrokerSettings(1 << 60, {"2147483647": longest, "": longest}))
    block, acks = bytearray(SharedMemory.BROKERS_BYTES), Words(memoryview(bytearray(8)))
    BulletinPublisher(memoryview(block), acks, list).publish_base(told)
    assert len(told) <= BROKERS_BYTES_MAX + 64


def told_to_the_supervisor(tree: CoordinatorTree) -> list[BrokerSettings]:
    memory = tree.memory
    reader = BulletinReader(memory.private.block("brokers"), memory.words("broker_acks"), SUPERVISOR)
    return [msgspec.msgpack.decode(news, type=BrokerSettings) for news in reader.poll()]


def test_whoever_alters_a_broker_waits_for_the_supervisor(tree: CoordinatorTree) -> None:
    fake = tree.handlers[0]
    request = fake.call(AlterSettings([of_broker("1", ("max.connections", SET, "5"))]))
    assert told_to_the_supervisor(tree) == [BrokerSettings(0, {})]
    told: list[BrokerSettings] = []

    def is_told() -> bool:
        told.extend(told_to_the_supervisor(tree))
        return told[-1].version == 1

    tree.until(is_told)
    assert told[-1].brokers == {"1": {"max.connections": "5"}}
    tree.pump()
    assert request not in fake.answers
    tree.memory.words("brokers_done").store(0, 1)
    tree.until(lambda: request in fake.answers)
    assert fake.answers[request] == AlteredResources([(0, None)])


def test_a_coordinator_killed_before_it_tells_has_a_successor_who_does(tree: CoordinatorTree) -> None:
    """Kill a coordinator behind the durable record, and check that its successor announces the change."""
    assert told_to_the_supervisor(tree) == [BrokerSettings(0, {})]
    tree.handlers[0].call(AlterSettings([of_broker("", ("max.connections", SET, "5"))]))
    tree.until(tree.append_waits, pump_log=False)
    os.kill(tree.pid, signal.SIGSTOP)
    tree.pump()  # the log process writes the round; nobody hears of it
    tree.replace(2)
    tree.until(lambda: told_to_the_supervisor(tree)[-1].version == 1)
    assert told_to_the_supervisor(tree)[-1].brokers == {"": {"max.connections": "5"}}
