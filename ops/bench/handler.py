"""What the handler's native turn does in a second, alone on one core: one-record Produce requests.

    python -m ops.bench.handler [--seconds 2] [--version 7] [--batch 64]

Requests lie in a processor's arena, as they would after reading; the log ring is emptied between turns,
outside of the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.hot_path.topic_table import TopicTable
from mpbroker.handlers.hot_path.turn import HandlerTurn
from mpbroker.handlers.requests.metadata import Metadata
from mpbroker.ipc import slots, topology
from mpbroker.ipc.metadata import MetadataBase, PartitionImage, Places, TopicImage
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.topology import LOG, SharedMemory, Sizes
from mpbroker.protocol.headers import RequestHeader, encode_request_frame
from mpbroker.protocol.messages import ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

PROCESSOR, HANDLER = topology.processor(0), topology.handler(0)
TOPIC_ID = bytes(15) + b"\x01"
CONNECTIONS = 256


def produce_frame(version: int) -> bytes:
    record = NewRecord(key=None, value=bytes(100), timestamp=time.time_ns() // 1_000_000)
    data = ProduceRequest.PartitionProduceData(0, bytes(build_batch([record])))
    topic = ProduceRequest.TopicProduceData("bench", TOPIC_ID, [data])
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    return b"".join(encode_request_frame(RequestHeader(0, version, 1, "bench"), request))


def requests(memory: SharedMemory, version: int) -> list[bytes]:
    """A REQUEST for each of so many connections, every one with a block of its own."""
    frame = produce_frame(version)
    arena = memory.arena(PROCESSOR)
    body = 4 + 8 + 2 + len("bench") + (version >= 9)
    found = []
    for connection in range(CONNECTIONS):
        block = arena.allocate(len(frame) + 512)
        arena.view(block, len(frame))[:] = frame
        generation = arena.lend(block, HANDLER)
        found.append(
            slots.pack_request(
                SlotKind.REQUEST,
                PROCESSOR,
                connection,
                connection,
                block,
                generation,
                len(frame),
                body,
                0,
                version,
            )
        )
    return found


def measure(memory: SharedMemory, version: int, batch: int, seconds: float) -> float:
    """Nanoseconds per request."""
    topics = TopicTable()
    images = [TopicImage("bench", TOPIC_ID, Places.of([PartitionImage(0, 0, 1)]).packed)]
    news = MetadataBase(1, "bench", 1, images)
    Metadata(BrokerConfig(), topics).apply([msgspec.msgpack.encode(news)])
    turn = HandlerTurn(HANDLER, memory, memory.counters(HANDLER), topics, {})
    into, out = memory.ring(PROCESSOR, HANDLER), memory.ring(HANDLER, LOG)
    all_slots = requests(memory, version)
    groups = [b"".join(all_slots[at : at + batch]) for at in range(0, CONNECTIONS, batch)]
    spent_ns, done = 0, 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for group in groups:
            into.push_batch(group)
            before = time.perf_counter_ns()
            left = turn.run(0)
            spent_ns += time.perf_counter_ns() - before
            jobs, _ = out.take(1024)
            assert not left, "the turn handed a common request back"
            assert len(jobs) == len(group), "a request is missing in the log ring"
            done += len(jobs) // 64
    return spent_ns / done


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--version", type=int, default=7)
    parser.add_argument("--batch", type=int, default=0, help="requests per turn; several if not given")
    options = parser.parse_args()
    sizes = Sizes(partition_slots=16, arena_extent_bytes=1 << 30)
    for batch in [options.batch] if options.batch else [1, 8, 64, 256]:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            memory = SharedMemory(Path(directory) / "bench", sizes)
            each_ns = measure(memory, options.version, batch, options.seconds)
            memory.close()
        print(
            f"Produce v{options.version}, {batch:3d} per turn: "
            f"{each_ns:6.0f} ns each, {1e3 / each_ns:5.2f} M/s"
        )


if __name__ == "__main__":
    main()
