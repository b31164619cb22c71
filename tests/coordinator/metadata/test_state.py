"""What the coordinator answers: Kafka's codes and texts, one case each."""

import uuid

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.metadata.state import Decider, InconsistentMetadata, MetadataState
from mpbroker.ipc.calls import (
    AllocateProducerIds,
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    Failed,
    ProducerIds,
    Recovered,
)
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from mpbroker.protocol.uuids import uuid_text
from tests.support.decider_rig import DeciderRig


def test_create_says_what_it_made() -> None:
    rig = DeciderRig(num_partitions=3)
    answer = rig.call(CreateTopics([CreateTopic("a", configs={"retention.ms": "5"})]))
    assert isinstance(answer, CreatedTopics)
    (made,) = answer.topics
    assert (made.error, made.partitions, made.replication_factor) == (0, 3, 1)
    assert made.configs == {"retention.ms": "5"}
    topic = rig.state.topics[made.topic_id]
    assert (topic.name, topic.partitions, topic.configs, topic.config_version) == ("a", 3, made.configs, 1)
    assert (rig.state.next_offset, rig.state.partitions) == (5, 3)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        (
            "x" * 250,
            f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed length 249",
        ),
        (
            "a/b",
            "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        ),
        (
            "a\n",
            "Topic name is invalid: 'a\n' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        ),
    ],
)
def test_illegal_names(name: str, says: str) -> None:
    assert DeciderRig().create(CreateTopic(name)) == [(name, 17, says)]


def test_the_longest_name_is_legal() -> None:
    assert DeciderRig().create(CreateTopic("x" * 249))[0][1] == 0


def test_names_that_collide(rig: DeciderRig) -> None:
    assert rig.create(CreateTopic("a.b"), CreateTopic("a_b")) == [
        ("a.b", 0, None),
        ("a_b", 17, "Topic 'a_b' collides with existing topic: a.b"),
    ]
    assert rig.create(CreateTopic("a_b"))[0][1] == 17
    rig.delete(["a.b"])
    assert rig.create(CreateTopic("a_b"))[0][1] == 0


def test_existing_and_internal(rig: DeciderRig) -> None:
    rig.create(CreateTopic("a"))
    assert rig.create(CreateTopic("a")) == [("a", 36, "Topic 'a' already exists.")]
    prohibited = "Creation of internal topic __cluster_metadata is prohibited."
    assert rig.create(CreateTopic("__cluster_metadata")) == [("__cluster_metadata", 42, prohibited)]


def test_duplicates_in_a_request_get_one_answer(rig: DeciderRig) -> None:
    assert rig.create(CreateTopic("a"), CreateTopic("b"), CreateTopic("a")) == [
        ("a", 42, "Duplicate topic name."),
        ("b", 0, None),
    ]
    assert list(rig.state.ids) == ["b"]


@pytest.mark.parametrize(
    ("topic", "error", "says"),
    [
        (
            CreateTopic("a", partitions=0),
            37,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            CreateTopic("a", partitions=-2),
            37,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            CreateTopic("a", replication_factor=0),
            38,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            CreateTopic("a", replication_factor=3),
            38,
            "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be "
            "reached because only 1 broker(s) are registered.",
        ),
        (
            CreateTopic("a", partitions=1, assignments={0: [1]}),
            42,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            CreateTopic("a", replication_factor=1, assignments={0: [1]}),
            42,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            CreateTopic("a", assignments={0: []}),
            39,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            CreateTopic("a", assignments={0: [1], 1: [1, 7]}),
            39,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (
            CreateTopic("a", assignments={0: [1, 1]}),
            39,
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            CreateTopic("a", assignments={0: [1], 2: [1]}),
            39,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            CreateTopic("a", assignments={0: [2]}),
            39,
            "The manual partition assignment includes broker 2, but no such broker is registered.",
        ),
        (CreateTopic("a", configs={"nonsense": "1"}), 40, "Unknown topic config name: nonsense"),
        (
            CreateTopic("a", configs={"retention.ms": None, "segment.ms": None}),
            40,
            "Null value not supported for topic configs: retention.ms,segment.ms",
        ),
        (
            CreateTopic("a", configs={"leader.replication.throttled.replicas": "x" * 32768}),
            40,
            "The configuration value cannot be added because it exceeds the maximum value size of 32767 "
            "bytes.",
        ),
        (CreateTopic("a", partitions=101), 37, "The broker has room for 100 partitions and has 0."),
    ],
)
def test_refusals(rig: DeciderRig, topic: CreateTopic, error: int, says: str) -> None:
    assert rig.create(topic) == [("a", error, says)]
    assert rig.state == MetadataState()


def test_bad_config_value() -> None:
    ((_, error, says),) = DeciderRig().create(CreateTopic("a", configs={"retention.ms": "soon"}))
    assert error == ErrorCode.INVALID_CONFIG
    assert says is not None
    assert "retention.ms" in says


def test_assignments_to_this_broker(rig: DeciderRig) -> None:
    assert rig.create(CreateTopic("a", assignments={1: [1], 0: [1]})) == [("a", 0, None)]
    assert rig.state.topics[rig.state.ids["a"]].partitions == 2


def test_replicas_may_be_clamped() -> None:
    rig = DeciderRig(mpbroker_replication_factor_clamp=True)
    assert rig.create(CreateTopic("a", replication_factor=3)) == [("a", 0, None)]


def test_default_replicas_count() -> None:
    assert DeciderRig(default_replication_factor=2).create(CreateTopic("a"))[0][1] == 38


def test_too_much_for_one_request() -> None:
    text = "Excessively large number of partitions per request: 10001, and 10000 at most."
    topics = [CreateTopic("a", partitions=9_999), CreateTopic("b", partitions=2)]
    assert DeciderRig(limit=100_000).create(*topics) == [("a", 44, text), ("b", 44, text)]


def test_the_partition_limit_counts_what_is_deleted() -> None:
    rig = DeciderRig(limit=4)
    assert rig.create(CreateTopic("a", partitions=3), CreateTopic("b", partitions=2))[1][1] == 37
    rig.delete(["a"])
    assert rig.create(CreateTopic("b", partitions=4))[0][1] == 0


def test_validate_only_leaves_nothing(rig: DeciderRig) -> None:
    answer = rig.call(CreateTopics([CreateTopic("a.b"), CreateTopic("a_b")], validate_only=True))
    assert isinstance(answer, CreatedTopics)
    assert [(t.error, t.partitions, t.topic_id) for t in answer.topics] == [
        (0, 1, bytes(16)),
        (17, -1, bytes(16)),
    ]
    assert rig.state == MetadataState()


def test_automatic_creation_of_what_exists_is_no_error(rig: DeciderRig) -> None:
    rig.create(CreateTopic("a", partitions=3))
    decision = rig.decider.decide(rig.state, CreateTopics([CreateTopic("a")], automatic=True))
    assert isinstance(decision.answer, CreatedTopics)
    assert (decision.answer.topics[0].error, decision.answer.topics[0].partitions) == (0, 3)
    assert (decision.records, decision.awaits) == ([], [rig.state.ids["a"]])


def test_reserved_ids_are_never_given() -> None:
    good = uuid.UUID(int=1 << 100).bytes
    dash = b"\xf8" + bytes(15)
    assert uuid_text(dash).startswith("-")
    offered = iter(
        [bytes(16), bytes(15) + b"\x01", bytes(15) + b"\x63", dash, good, good, bytes(15) + b"\x64"]
    )
    decider = Decider(BrokerConfig(), 10, lambda: next(offered))
    state = MetadataState()
    for name in ("a", "b"):
        state.apply_all(decider.decide(state, CreateTopics([CreateTopic(name)])).records)
    assert list(state.ids.values()) == [good, bytes(15) + b"\x64"]


def test_delete_by_name_and_id(rig: DeciderRig) -> None:
    rig.create(CreateTopic("a"), CreateTopic("b"), CreateTopic("c"))
    a, b, c = (rig.state.ids[name] for name in "abc")
    assert rig.delete(["a"], [b]) == [("b", 0, None), ("a", 0, None)]
    assert list(rig.state.topics) == [c]
    assert rig.delete(["a"]) == [("a", 3, "This server does not host this topic-partition.")]
    assert rig.delete([], [a]) == [(None, 100, "This server does not host this topic ID.")]


def test_delete_that_contradicts_itself(rig: DeciderRig) -> None:
    rig.create(CreateTopic("a"), CreateTopic("b"))
    a, b = (rig.state.ids[name] for name in "ab")
    assert rig.delete(["a", "a"]) == [("a", 42, "Duplicate topic name.")]
    assert rig.delete([], [b, b]) == [(None, 42, "Duplicate topic id.")]
    text = "The provided topic name maps to an ID that was already supplied."
    assert rig.delete(["a"], [a]) == [("a", 42, text)]
    zero = "Attempt to find topic with invalid topicId AAAAAAAAAAAAAAAAAAAAAA"
    assert rig.delete([], [bytes(16)]) == [(None, 42, zero)]
    assert len(rig.state.topics) == 2


def test_producer_id_blocks_follow_each_other(rig: DeciderRig) -> None:
    blocks = [rig.call(AllocateProducerIds()) for _ in range(3)]
    assert blocks == [ProducerIds(0, 1000), ProducerIds(1000, 1000), ProducerIds(2000, 1000)]
    assert rig.state.next_producer_id == 3000


def test_producer_ids_run_out(rig: DeciderRig) -> None:
    rig.state.apply_all([ProducerIdsRecord(next_producer_id=(1 << 63) - 1000)])
    assert isinstance(rig.call(AllocateProducerIds()), Failed)


def test_a_foreign_call_is_answered() -> None:
    assert isinstance(DeciderRig().call(Recovered()), Failed)


ID = uuid.UUID(int=5000).bytes


@pytest.mark.parametrize(
    "records",
    [
        [TopicRecord("a", ID), TopicRecord("a", bytes(16))],
        [TopicRecord("a", ID), TopicRecord("b", ID)],
        [RemoveTopicRecord(ID)],
        [PartitionRecord(0, ID)],
        [TopicRecord("a", ID), PartitionRecord(1, ID)],
        [ConfigRecord(2, "a", "retention.ms", "1")],
        [ProducerIdsRecord(next_producer_id=1000), ProducerIdsRecord(next_producer_id=0)],
    ],
)
def test_a_log_that_contradicts_itself(records: list[TopicRecord]) -> None:
    with pytest.raises(InconsistentMetadata, match="__cluster_metadata offset"):
        MetadataState().apply_all(list(records))


def test_a_version_has_all_topics_that_were_created_before(rig: DeciderRig) -> None:
    assert not rig.state.has_topics_since(rig.state.next_offset)
    before = rig.state.next_offset
    rig.create(CreateTopic("a", 2))
    assert rig.state.has_topics_since(before)
    version = rig.state.next_offset
    assert not rig.state.has_topics_since(version)
    rig.delete(["a"])
    assert not rig.state.draft().has_topics_since(version), "a deletion brings no topic"
    rig.create(CreateTopic("b", 1))
    assert rig.state.draft().has_topics_since(version)
    assert rig.state.has_topics_since(rig.state.next_offset + 1), "that is a version of another log"


def test_a_setting_is_changed_and_taken_back() -> None:
    state = MetadataState()
    state.apply_all([TopicRecord("a", ID), ConfigRecord(2, "a", "retention.ms", "1")])
    state.apply_all([ConfigRecord(2, "a", "retention.ms", "2")])
    assert (state.topics[ID].configs, state.topics[ID].config_version) == ({"retention.ms": "2"}, 2)
    state.apply_all([ConfigRecord(2, "a", "retention.ms", None)])
    assert (state.topics[ID].configs, state.topics[ID].config_version) == ({}, 3)
