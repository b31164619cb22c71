"""The state machine against a model of names; and the log against the state: replay gives it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.metadata.image_sizes import topic_bytes
from mpbroker.coordinator.metadata.metadata_records import (
    MetadataRecord,
    build_metadata_batch,
    decode_record,
    encode_record,
)
from mpbroker.coordinator.metadata.replay import replay
from mpbroker.coordinator.metadata.state import Decider, MetadataState
from mpbroker.ipc.calls import (
    AllocateProducerIds,
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    DeletedTopics,
    DeleteTopics,
    Message,
    ProducerIds,
)
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.table import Partition, PartitionFlag
from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from tests.support.decider_rig import counting_ids
from tests.support.forms import rounds

LIMIT = 12
NAMES = ("a", "b", "c.d", "c_d", "c.e", ".", "x/y")
ILLEGAL = (".", "x/y")
names = st.sampled_from(NAMES)
topics = st.builds(
    CreateTopic,
    name=names,
    partitions=st.integers(1, 5),
    configs=st.sampled_from([{}, {"retention.ms": "1"}, {"nonsense": "1"}]),
)


class MetadataMachine(RuleBasedStateMachine):
    """Drafts are made of several decisions and then kept or dropped, as rounds are."""

    def __init__(self) -> None:
        super().__init__()
        self.decider = Decider(BrokerConfig(), LIMIT, counting_ids())
        self.state = MetadataState()
        self.model: dict[str, tuple[bytes, int]] = {}
        self.blocks = 0
        self.log: list[MetadataRecord] = []
        self.open_draft()

    def open_draft(self) -> None:
        self.draft = self.state.draft()
        self.draft_model = self.model.copy()
        self.draft_blocks = self.blocks
        self.draft_log: list[MetadataRecord] = []

    def decide(self, call: Message) -> Message:
        decision = self.decider.decide(self.draft, call)
        self.draft.apply_all(decision.records)
        self.draft_log += decision.records
        return decision.answer

    def expected_error(self, topic: CreateTopic) -> int:
        """The rules once more, told differently."""
        if topic.name in self.draft_model:
            return 36
        if topic.name in ILLEGAL:
            return 17
        if any(other.replace(".", "_") == topic.name.replace(".", "_") for other in self.draft_model):
            return 17
        if "nonsense" in topic.configs:
            return 40
        used = sum(partitions for _, partitions in self.draft_model.values())
        return 37 if used + topic.partitions > LIMIT else 0

    @rule(asked=st.lists(topics, max_size=3, unique_by=lambda topic: topic.name))
    def create(self, asked: list[CreateTopic]) -> None:
        answer = self.decide(CreateTopics(asked))
        assert isinstance(answer, CreatedTopics)
        assert [topic.name for topic in answer.topics] == [topic.name for topic in asked]
        for topic, made in zip(asked, answer.topics, strict=True):
            assert made.error == self.expected_error(topic)
            if not made.error:
                self.draft_model[topic.name] = (made.topic_id, topic.partitions)

    @rule(asked=st.lists(names, max_size=3, unique=True))
    def delete_by_name(self, asked: list[str]) -> None:
        answer = self.decide(DeleteTopics(asked))
        assert isinstance(answer, DeletedTopics)
        found = {topic.name: topic.error for topic in answer.topics}
        assert found == {name: 0 if name in self.draft_model else 3 for name in asked}
        for name in asked:
            self.draft_model.pop(name, None)

    @precondition(lambda self: self.draft_model)
    @rule(data=st.data())
    def delete_by_id(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.draft_model)))
        topic_id, _ = self.draft_model.pop(name)
        answer = self.decide(DeleteTopics(ids=[topic_id]))
        assert isinstance(answer, DeletedTopics)
        assert [(topic.name, topic.error) for topic in answer.topics] == [(name, 0)]
        again = self.decide(DeleteTopics(ids=[topic_id]))
        assert isinstance(again, DeletedTopics)
        assert again.topics[0].error == 100

    @rule()
    def allocate(self) -> None:
        assert self.decide(AllocateProducerIds()) == ProducerIds(1000 * self.draft_blocks, 1000)
        self.draft_blocks += 1

    @rule()
    def keep_draft(self) -> None:
        self.state, self.model, self.blocks = self.draft, self.draft_model, self.draft_blocks
        self.log += self.draft_log
        self.open_draft()

    @rule()
    def drop_draft(self) -> None:
        self.open_draft()

    @invariant()
    def replay_is_the_state(self) -> None:
        replayed = MetadataState()
        replayed.apply_all([decode_record(encode_record(record)) for record in self.log])
        assert replayed == self.state
        found = {t.name: (t.topic_id, t.partitions) for t in self.state.topics.values()}
        assert found == self.model
        assert self.state.next_offset == len(self.log)
        assert self.state.partitions == sum(partitions for _, partitions in self.model.values())
        there = self.state.topics.values()
        assert self.state.image_bytes == sum(topic_bytes(t.name, t.partitions, t.configs) for t in there)


MetadataMachine.TestCase.settings = settings(max_examples=rounds(60), stateful_step_count=25, deadline=None)
TestMetadataMachine = MetadataMachine.TestCase


def durable_end(offset: int, position: int, segment: int = 0) -> Partition:
    live, bound = PartitionFlag.PARTITION_LIVE, (offset, segment, position)
    return Partition(METADATA_TOPIC_ID, 0, 1, live, 0, 0, 0, 0, *bound, *bound, offset)


def some_log(directory: Path) -> tuple[list[int], list[MetadataState]]:
    """Three segments of two rounds each; -> (size of each segment, the state after each round)."""
    decider = Decider(BrokerConfig(), 1000, counting_ids())
    state, states, sizes = MetadataState(), [MetadataState()], []
    place = directory / f"{METADATA_TOPIC}-0"
    place.mkdir()
    for segment in range(3):
        data = b""
        base = state.next_offset
        for call in (CreateTopics([CreateTopic(f"t{segment}", 2)]), DeleteTopics([f"t{segment - 1}"])):
            records = (
                decider.decide(state, call).records or decider.decide(state, AllocateProducerIds()).records
            )
            values = [encode_record(record) for record in records]
            data += build_metadata_batch(values, 0, state.next_offset)
            state.apply_all(records)
            states.append(state.draft())
        (place / f"{base:020}.log").write_bytes(data)
        sizes.append(len(data))
    return sizes, states


def test_replay_reads_all_segments(tmp_path: Path) -> None:
    sizes, states = some_log(tmp_path)
    base = states[4].next_offset
    state, removed = replay((str(tmp_path),), durable_end(states[-1].next_offset, sizes[-1], base))
    assert state == states[-1]
    assert sorted(removed.values()) == ["t0", "t1"]


def test_a_topic_that_came_back_under_its_id_is_not_removed(tmp_path: Path) -> None:
    """A coordinator has the topics of its answer removed from the log workers."""
    place = tmp_path / f"{METADATA_TOPIC}-0"
    place.mkdir()
    decider, state, data = Decider(BrokerConfig(), 1000, counting_ids()), MetadataState(), b""
    again = CreateTopic("t", 2)
    for call in (CreateTopics([CreateTopic("t", 2)]), DeleteTopics(["t"]), CreateTopics([again])):
        records = decider.decide(state, call).records
        data += build_metadata_batch([encode_record(one) for one in records], 0, state.next_offset)
        state.apply_all(records)
        again.topic_id = again.topic_id or state.ids["t"]
    (place / f"{0:020}.log").write_bytes(data)
    found, removed = replay((str(tmp_path),), durable_end(state.next_offset, len(data)))
    assert found == state
    assert (found.ids, removed) == ({"t": again.topic_id}, {})
    other = CreateTopic("other", 1, topic_id=again.topic_id)
    answer = decider.decide(state, CreateTopics([other])).answer
    assert isinstance(answer, CreatedTopics)
    assert answer.topics[0].message == "Its id is that of topic t."


@pytest.mark.parametrize("size", [1, 61, 100, 1000])
def test_batches_may_lie_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("mpbroker.storage.segments.READ_BYTES", size)
    sizes, states = some_log(tmp_path)
    end = durable_end(states[-1].next_offset, sizes[-1], states[4].next_offset)
    assert replay((str(tmp_path),), end)[0] == states[-1]


def test_replay_stops_at_the_durable_end(tmp_path: Path) -> None:
    """Check that bytes behind the durable end are ignored, even if they are damaged."""
    sizes, states = some_log(tmp_path)
    second = tmp_path / f"{METADATA_TOPIC}-0" / f"{states[2].next_offset:020}.log"
    second.write_bytes(second.read_bytes() + b"\xff" * 100)
    end = durable_end(states[4].next_offset, sizes[1], states[2].next_offset)
    state, removed = replay((str(tmp_path),), end)
    assert state == states[4]
    assert sorted(removed.values()) == ["t0"]


def test_an_empty_log(tmp_path: Path) -> None:
    assert replay((str(tmp_path),), durable_end(0, 0)) == (MetadataState(), {})


@pytest.mark.parametrize("damage", ["crc", "gap", "short", "missing"])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    sizes, states = some_log(tmp_path)
    place = tmp_path / f"{METADATA_TOPIC}-0"
    second = place / f"{states[2].next_offset:020}.log"
    if damage == "crc":
        data = bytearray(second.read_bytes())
        data[70] ^= 1
        second.write_bytes(data)
    elif damage == "short":
        second.write_bytes(second.read_bytes()[:-1])
    elif damage == "gap":
        (place / f"{0:020}.log").write_bytes(b"")
    else:
        second.unlink()
    end = durable_end(states[4].next_offset, sizes[1], states[2].next_offset)
    with pytest.raises(FatalError, match=r"__cluster_metadata-0 cannot be read: .*restore it"):
        replay((str(tmp_path),), end)
