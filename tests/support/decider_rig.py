"""A decider whose decisions become true at once, as records that were encoded and decoded."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.metadata.metadata_records import decode_record, encode_record
from mpbroker.coordinator.metadata.state import IMAGE_BYTES_MAX, Decider, Decision, MetadataState
from mpbroker.ipc.calls import (
    AlteredResources,
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    DeletedTopics,
    DeleteTopics,
    Message,
)


def counting_ids() -> Callable[[], bytes]:
    """Ids in order, beyond those that Kafka reserves."""
    numbers = iter(range(1000, 1 << 30))
    return lambda: uuid.UUID(int=next(numbers)).bytes


class DeciderRig:
    """`state` is what the decider's answers have made true."""

    def __init__(
        self, limit: int = 100, *, image_bytes_max: int = IMAGE_BYTES_MAX, **settings: object
    ) -> None:
        self.state = MetadataState()
        self.config = BrokerConfig(**settings)  # type: ignore[arg-type]
        self.new_id = counting_ids()
        self.decider = Decider(self.config, limit, self.new_id, image_bytes_max=image_bytes_max)

    def decide(self, message: Message) -> Decision:
        before = self.state.draft()
        decision = self.decider.decide(self.state, message)
        assert self.state == before, "deciding must not change the state"
        self.state.apply_all([decode_record(encode_record(record)) for record in decision.records])
        return decision

    def call(self, message: Message) -> Message:
        return self.decide(message).answer

    def results(self, message: Message) -> list[tuple[int, str | None]]:
        """Return (error, message) of each resource that the message alters."""
        answer = self.call(message)
        assert isinstance(answer, AlteredResources)
        return answer.results

    def create(self, *topics: CreateTopic, **options: Any) -> list[tuple[str, int, str | None]]:
        answer = self.call(CreateTopics(list(topics), **options))
        assert isinstance(answer, CreatedTopics)
        return [(topic.name, topic.error, topic.message) for topic in answer.topics]

    def delete(
        self, names: list[str] | None = None, ids: list[bytes] | None = None
    ) -> list[tuple[str | None, int, str | None]]:
        answer = self.call(DeleteTopics(names or [], ids or []))
        assert isinstance(answer, DeletedTopics)
        return [(topic.name, topic.error, topic.message) for topic in answer.topics]
