"""Typed calls and metadata news come back as what they were; anything else is refused."""

import msgspec
import pytest

from mpbroker.ipc.calls import (
    Acknowledged,
    AllocateProducerIds,
    CreatedTopic,
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    DeletedTopic,
    DeletedTopics,
    DeleteTopics,
    EnsuredPartition,
    EnsuredTopic,
    EnsureTopic,
    Failed,
    Message,
    ProducerIds,
    Recovered,
    RemovedTopic,
    RemoveTopic,
    decode,
    encode,
)
from mpbroker.ipc.metadata import (
    MetadataBase,
    MetadataDelta,
    MetadataNews,
    PartitionImage,
    PartitionSlots,
    TopicImage,
)

ID = bytes(range(16))
MESSAGES: list[Message] = [
    Failed(41, "no"),
    CreateTopics([CreateTopic("a", 3, 1, {0: [1]}, {"k": "v", "n": None})], True, True),
    CreatedTopics([CreatedTopic("a", 0, None, ID, 3, 1, {"k": "v"}), CreatedTopic("b", 36, "exists")]),
    DeleteTopics(["a"], [ID]),
    DeletedTopics([DeletedTopic(None, ID, 100, "gone")]),
    AllocateProducerIds(),
    ProducerIds((1 << 63) - 1000, 1000),
    EnsureTopic("a", ID, [0, 1], {"k": "v"}, 7),
    EnsuredTopic(ID, [EnsuredPartition(0, 5, 6), EnsuredPartition(1, error=56, message="disk")]),
    RemoveTopic("a", ID),
    RemovedTopic(ID),
    Recovered(),
    Acknowledged(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_come_back(message: Message) -> None:
    found = decode(memoryview(encode(message)))
    assert type(found) is type(message)
    assert found == message


def test_every_message_has_a_tag_of_its_own() -> None:
    tags = [type(message).__struct_config__.tag for message in MESSAGES]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize(
    "data", [b"", b"\xc0", encode(Recovered())[:-1], msgspec.msgpack.encode({"type": "new"})]
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)


def test_news_come_back() -> None:
    decoder = msgspec.msgpack.Decoder(MetadataNews)
    topic = TopicImage("a", ID, PartitionSlots.of([PartitionImage(0, 3, 4)]).packed, {"k": "v"}, 6, True)
    for news in (MetadataBase(9, "cluster", 1, [topic]), MetadataDelta(10, [topic], [ID])):
        assert decoder.decode(msgspec.msgpack.encode(news)) == news


def test_places_by_number() -> None:
    images = [PartitionImage(number, 7 * number, (1 << 32) - 1 - number) for number in range(3)]
    places = PartitionSlots.of(images)
    assert (list(places), list(places.values()), len(places)) == ([0, 1, 2], images, 3)
    assert PartitionSlots(places.packed) == places != PartitionSlots.of(images[:2])
    assert all(absent not in places and places.get(absent) is None for absent in (-1, 3, 1 << 31))
