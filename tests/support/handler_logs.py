"""A partition with real segment files, and fetches of it; the test is the log process that publishes them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.hot_path.fetch_positions import FetchPositions
from mpbroker.ipc.slots import PART_BYTES_EACH, PartKind, SlotKind, file_generation
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import FetchRequest
from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.support.handler_rig import Rig, partition_payload, piece, rig, topic_image

FETCH, LIST_OFFSETS = 1, 2
VERSIONS = range(4, 19)
T0 = 1_700_000_000_000
TOPIC = topic_image("logged", 1, partitions=2)
PART = struct.Struct("<IIQIIqQII")


class Logged:
    """A partition of two segments: batches of ten records, `sealed` of them in the first segment."""

    def __init__(self, directory: Path, made: Rig) -> None:
        self.rig = made
        self.directory = directory / "logged-0"
        self.directory.mkdir()
        (directory / "logged-1").mkdir()
        self.batches: list[bytes] = []
        self.segments: list[tuple[int, int]] = [(0, 0)]
        self.changes: dict[str, Any] = {}
        self.roll(0)

    @property
    def end(self) -> int:
        return 10 * len(self.batches)

    def roll(self, base: int) -> None:
        self.base, self.position = base, 0
        (self.directory / f"{base:020d}.log").touch()

    def append(self, visible: bool = True, value: bytes = b"v" * 50, codec: Codec = Codec.NONE) -> None:
        first = self.end
        batch = build_batch([NewRecord(value, b"k", T0 + first + i) for i in range(10)], codec=codec)
        assign_offset_and_epoch(batch, first, 0)
        with (self.directory / f"{self.base:020d}.log").open("ab") as file:
            file.write(batch)
        self.position += len(batch)
        self.batches.append(bytes(batch))
        if visible:
            self.publish()

    def publish(self, **changes: Any) -> None:
        self.changes |= changes
        fields = {
            "high_watermark": self.end,
            "high_watermark_segment": self.base,
            "high_watermark_position": self.position,
            "last_stable_offset": self.end,
            "last_stable_segment": self.base,
            "last_stable_position": self.position,
            "log_end_offset": self.end,
        }
        self.rig.table.write(0, partition_payload(TOPIC, 0, **(fields | self.changes)))
        self.rig.memory.words("dirty").store(0, self.rig.memory.words("dirty").load(0) + 1)


@contextmanager
def two_segments(directory: Path, sealed: int = 5) -> Iterator[Logged]:
    """At 0 and 50, with five batches of ten records each; `sealed`: so many in the first one."""
    with rig(BrokerConfig(log_dirs=(str(directory),))) as made:
        made.publish(TOPIC)
        log = Logged(directory, made)
        for _ in range(sealed):
            log.append()
        log.roll(log.end)
        for _ in range(5):
            log.append()
        yield log


def learn(places: FetchPositions, slot: int, path: Path, generation: int = 5) -> None:
    """Tell the turn of a segment as the slow path does that has served a fetch from it."""
    places.learn(slot, generation, int(path.stem), file_generation(path.stat()), bytes(path))


def fetch(
    offset: int,
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition: int = 0,
    each: int = 1 << 20,
    **fields: Any,
) -> FetchRequest:
    request = FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=max_bytes)
    wanted = FetchRequest.FetchPartition(partition, fetch_offset=offset, partition_max_bytes=each)
    for name, value in fields.items():
        setattr(request if hasattr(request, name) else wanted, name, value)
    request.topics = [FetchRequest.FetchTopic("logged", TOPIC.topic_id, [wanted])]
    return request


def whole(made: Rig, reply: Any) -> bytes:
    """Frame a response as the processor puts it on the wire.

    Raises FileNotFoundError if a file was deleted or replaced meanwhile.
    """
    if reply.kind == SlotKind.SEND:
        return made.processor.frame_of(reply)
    assert reply.kind == SlotKind.SEND_PARTS
    arena = made.memory.arena(reply.owner)
    frame = b""
    assert reply.position % 8 == 0
    try:
        for i in range(reply.length):
            raw = piece(arena, reply.block, reply.position + i * PART_BYTES_EACH, PART_BYTES_EACH)
            kind, length, position, slot, generation, base, file, name, name_length = PART.unpack(bytes(raw))
            if kind == PartKind.PART_BYTES:
                frame += bytes(piece(arena, reply.block, position, length))
                continue
            path = Path(os.fsdecode(bytes(piece(arena, reply.block, name, name_length))))
            # The partition's directory has the file, or the directory of one of its windows.
            is_of_slot = any(one.name.endswith(f"-{slot}") for one in path.parents)
            assert (is_of_slot, generation, base) == (True, 5, int(path.stem))
            if file_generation(path.stat()) != file:
                raise FileNotFoundError(path)
            frame += path.read_bytes()[position : position + length]
    finally:
        made.processor.give_back(reply)
    return frame


def replies(log: Logged) -> list[Any]:
    return log.rig.processor.replies()


def answer(log: Logged, version: int) -> Any:
    (reply,) = replies(log)
    frame = whole(log.rig, reply)
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    return decode_response_frame(FETCH, version, frame[4:])[1]


def ask(log: Logged, request: FetchRequest, version: int = 12) -> Any:
    log.rig.send(FETCH, version, request)
    return answer(log, version)


def partition_of(response: Any) -> Any:
    return response.responses[0].partitions[0]


def park(log: Logged, request: FetchRequest, connection: int = 7) -> None:
    log.rig.send(FETCH, 12, request, connection=connection)
    assert [r.kind for r in replies(log)] == [SlotKind.PARKED]
    assert len(log.rig.handler.broker.fetches) >= 1
