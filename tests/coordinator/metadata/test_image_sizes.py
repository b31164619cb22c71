"""What handlers are told has a bound, and what would pass it is refused: a create, a quota."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.coordinator.metadata.image_sizes import quota_bytes, topic_bytes
from mpbroker.ipc.calls import (
    AlteredQuotas,
    AlterQuotas,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    QuotaAlteration,
)
from mpbroker.ipc.metadata import PartitionImage, PartitionSlots, QuotaImage, TopicImage
from mpbroker.ipc.topology import SharedMemory
from tests.support.coordinator_tree import CoordinatorTree
from tests.support.decider_rig import DeciderRig

POLICY_VIOLATION = 44
texts = st.text(max_size=300)
encode = msgspec.msgpack.encode


@given(texts, st.integers(0, 40), st.dictionaries(texts, texts, max_size=20))
def test_a_topic_takes_no_more_than_that(name: str, partitions: int, configs: dict[str, str]) -> None:
    places = PartitionSlots.of(PartitionImage(n, 65_536 + n, (1 << 32) - 1) for n in range(partitions))
    image = TopicImage(name, bytes(16), places.packed, configs, 1 << 62, True)
    assert len(encode(image)) <= topic_bytes(name, partitions, configs)


@given(
    st.lists(st.tuples(texts, st.none() | texts), min_size=1, max_size=2),
    st.dictionaries(texts, st.floats(), min_size=1, max_size=20),
)
def test_a_quota_takes_no_more_than_that(
    entity: list[tuple[str, str | None]], values: dict[str, float]
) -> None:
    assert len(encode(QuotaImage(entity, values))) <= quota_bytes(entity, values)


class Room(DeciderRig):
    """A decider whose state has a bound."""

    def __init__(self, bound: int) -> None:
        super().__init__(1000, image_bytes_max=bound)

    def make(self, *names: str, **configs: str) -> list[int]:
        return [
            error for _, error, _ in self.create(*(CreateTopic(n, 1, configs={**configs}) for n in names))
        ]

    def set_quota(self, value: float | None, *users: str) -> list[tuple[int, str | None]]:
        changes = {"producer_byte_rate": value}
        answer = self.call(AlterQuotas([QuotaAlteration([("user", u)], changes) for u in users]))
        assert isinstance(answer, AlteredQuotas)
        return answer.results


def test_topics_are_refused_that_handlers_could_not_be_told_of() -> None:
    one = topic_bytes("a", 1, {})
    room = Room(3 * one)
    assert room.make("a", "b", "c", "d") == [0, 0, 0, POLICY_VIOLATION]
    assert room.make("d") == [POLICY_VIOLATION]
    room.call(DeleteTopics(["b"]))
    assert room.make("d") == [0]
    assert room.state.image_bytes == 3 * one


def test_settings_count() -> None:
    configs = {"retention.ms": "7"}
    room = Room(topic_bytes("a", 1, configs) + topic_bytes("b", 1, configs) - 1)
    assert room.make("a", **{"retention.ms": "7"}) == [0]
    assert room.make("b", **{"retention.ms": "7"}) == [POLICY_VIOLATION]
    assert room.make("b") == [0]


def test_quotas_are_refused_as_well_and_may_always_be_removed() -> None:
    one = quota_bytes([("user", "a")], {"producer_byte_rate": 1.0})
    room = Room(2 * one)
    results = room.set_quota(5.0, "a", "b", "c")
    assert [error for error, _ in results] == [0, 0, POLICY_VIOLATION]
    assert room.state.image_bytes == 2 * one
    assert room.set_quota(6.0, "a") == [(0, None)], "the same room"
    assert room.make("t") == [POLICY_VIOLATION]
    room.decider = Room(0).decider
    assert room.set_quota(7.0, "b") == [(0, None)]
    assert room.set_quota(None, "a", "b") == [(0, None)] * 2
    assert room.state.image_bytes == 0


def test_names_of_quotas_have_a_bound() -> None:
    room = Room(1 << 20)
    assert room.set_quota(1.0, "\u00e4" * 512) == [(0, None)]
    ((error, text),) = room.set_quota(1.0, "\u00e4" * 512 + "x")
    assert (error, text) == (42, "The name of a user may have at most 1024 bytes")


def test_a_create_beyond_the_bound_is_answered(
    make_tree: Callable[..., CoordinatorTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the client is answered, and that a successor can still announce all existing topics."""
    monkeypatch.setattr(SharedMemory, "BULLETIN_BYTES", 4096 + 2 * 8192)
    tree = make_tree()
    tree.serve()
    made = set()
    for number in range(200):
        answer = tree.ask(CreateTopics([CreateTopic(f"t{number}", 1)]))
        if answer.topics[0].error:
            assert answer.topics[0].error == POLICY_VIOLATION
            break
        made.add(f"t{number}")
    assert 10 < len(made) < 200
    tree.replace()
    tree.until(lambda: set(tree.handlers[0].topics) == made)
