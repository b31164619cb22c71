"""Partitions with real segment files, and a client that keeps a fetch session as Kafka's clients do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import FetchRequest, FetchResponse
from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.builder import build_batch
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import NewRecord
from tests.support.handler_logs import whole
from tests.support.handler_rig import Rig, partition_payload, rig, topic_image

FETCH = 1
T0 = 1_700_000_000_000
PARTITIONS = 4
TOPIC = topic_image("logged", 1, partitions=PARTITIONS)


class PartitionFiles:
    """One partition with one segment; everything in it is visible."""

    def __init__(self, directory: Path, made: Rig, number: int) -> None:
        self.path = directory / f"logged-{number}" / f"{0:020d}.log"
        self.path.parent.mkdir()
        self.path.touch()
        self._rig = made
        self._number = number
        self.end = self.position = 0

    def append(self, count: int = 2) -> int:
        """The size of the new batch."""
        batch = build_batch([NewRecord(b"k", b"v" * 50, T0 + self.end + i) for i in range(count)])
        assign_offset_and_epoch(batch, self.end, 0)
        with self.path.open("ab") as file:
            file.write(batch)
        self.end += count
        self.position += len(batch)
        self.publish()
        return len(batch)

    def publish(self, **changes: Any) -> None:
        seen = {
            "high_watermark": self.end,
            "high_watermark_position": self.position,
            "last_stable_offset": self.end,
            "last_stable_position": self.position,
            "log_end_offset": self.end,
        }
        self._rig.table.write(self._number, partition_payload(TOPIC, self._number, **(seen | changes)))
        dirty = self._rig.memory.words("dirty")
        dirty.store(0, dirty.load(0) + 1)


@dataclass
class Logs:
    rig: Rig
    partitions: list[PartitionFiles]

    def frame(self, reply: Any) -> bytes:
        return whole(self.rig, reply)

    def ask(self, version: int, request: FetchRequest, **send: Any) -> bytes:
        """The frame of an answer that comes at once."""
        self.rig.send(FETCH, version, request, **send)
        (reply,) = self.rig.processor.replies()
        return self.frame(reply)


@contextmanager
def logs(directory: Path, **config: Any) -> Iterator[Logs]:
    with rig(BrokerConfig(log_dirs=(str(directory),), **config)) as made:
        made.publish(TOPIC)
        yield Logs(made, [PartitionFiles(directory, made, number) for number in range(PARTITIONS)])


def decoded(version: int, frame: bytes) -> FetchResponse:
    response = decode_response_frame(FETCH, version, frame[4:])[1]
    assert isinstance(response, FetchResponse)
    return response


def topics_of(partitions: Sequence[FetchRequest.FetchPartition]) -> list[FetchRequest.FetchTopic]:
    return [FetchRequest.FetchTopic("logged", TOPIC.topic_id, list(partitions))] if partitions else []


def wanted(partition: int, offset: int, each: int = 1 << 20, **fields: Any) -> FetchRequest.FetchPartition:
    return FetchRequest.FetchPartition(partition, fetch_offset=offset, partition_max_bytes=each, **fields)


@dataclass
class Client:
    """Follows Kafka's FetchSessionHandler, and checks what it checks; reads each record exactly once."""

    version: int
    positions: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    session: int = 0
    epoch: int = 0
    asked: dict[int, tuple[int, int]] = field(default_factory=dict)

    def request(
        self, partitions: Sequence[int], max_bytes: int = 1 << 20, each: int = 1 << 20
    ) -> FetchRequest:
        now = {number: (self.positions[number], each) for number in partitions}
        request = FetchRequest(min_bytes=1, max_bytes=max_bytes)
        request.session_id, request.session_epoch = self.session, self.epoch
        if self.epoch > 0:
            changed = [n for n in partitions if self.asked.get(n) != now[n]]
            gone = [n for n in self.asked if n not in now]
            if gone:
                request.forgotten_topics_data = [FetchRequest.ForgottenTopic("logged", TOPIC.topic_id, gone)]
        else:
            changed = list(partitions)
        request.topics = topics_of([wanted(n, *now[n]) for n in changed])
        self.asked = now
        return request

    def disconnected(self) -> None:
        """Disconnect the client; nobody knows whether the broker has answered."""
        self.epoch = 0

    def take(self, response: FetchResponse) -> int:
        """How many records came."""
        if response.error_code:
            self.session = 0 if response.error_code == 70 else self.session
            self.epoch = 0
            return 0
        told = [answer for topic in response.responses for answer in topic.partitions]
        numbers = [answer.partition_index for answer in told]
        assert len(set(numbers)) == len(numbers)
        if self.epoch > 0:
            assert set(numbers) <= set(self.asked)
        else:
            assert set(numbers) == set(self.asked)
        self.epoch = 0 if response.session_id == 0 else self.epoch + 1
        self.session = response.session_id
        return sum(self._read(answer) for answer in told)

    def _read(self, answer: FetchResponse.PartitionData) -> int:
        assert answer.error_code == 0
        before = position = self.positions[answer.partition_index]
        for batch in iterate_batches(bytes(answer.records or b"")):
            for record in batch.records():
                if record.offset >= position:
                    assert record.offset == position
                    position += 1
        self.positions[answer.partition_index] = position
        return position - before
