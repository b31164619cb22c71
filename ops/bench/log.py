"""What the log process's turn does in a second, alone: one-record jobs of a handler, answers to a processor.

    python -m ops.bench.log [--seconds 3] [--directory DIR] [--partitions 1] [--record-bytes 100]

Jobs are built once and sent again and again, so that only the turn is measured. For each flush policy: jobs
per second of the time spent in the turn, of the wall clock, per round, and the commit rounds per second.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import calls
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.slots import SlotKind, job_bytes, pack_produce, write_job_batch, write_job_header
from mpbroker.ipc.topology import LOG, SharedMemory, Sizes, handler, processor
from mpbroker.log.process import LogProcess
from mpbroker.records.batch import scan_batch
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage.directory_layout import prepare_log_dirs

REPLY_BYTES = 80
TOPIC = bytes(range(16))


def descriptors(
    memory: SharedMemory, targets: list[tuple[int, int]], count: int, record_bytes: int, acks: int
) -> bytes:
    """`count` produce jobs of one record each, in turn to each partition."""
    replies, requests = memory.arena(handler(0)), memory.arena(processor(0))
    out = bytearray()
    data = build_batch([NewRecord(value=bytes(record_bytes), timestamp=1_700_000_000_000)])
    scan = scan_batch(data)
    for i in range(count):
        slot, generation = targets[i % len(targets)]
        at = requests.allocate(len(data))
        requests.view(at, len(data))[:] = data
        head = job_bytes(1)
        block = replies.allocate(head + REPLY_BYTES)
        view = replies.view(block, head + REPLY_BYTES)
        write_job_header(view, 1, head, REPLY_BYTES)
        write_job_batch(
            view,
            0,
            slot,
            generation,
            at,
            processor(0),
            len(data),
            1,
            -1,
            -1,
            -1,
            scan.max_timestamp,
            1,
            0,
            head + 40,
            1,
        )
        lease = replies.lend(block, LOG)
        out += pack_produce(
            SlotKind.PRODUCE, acks, processor(0), 1, 1, block, lease, 0, handler(0), handler(0), 30_000, i
        )
    return bytes(out)


def measure(directory: Path, policy: str, at_once: int, options: argparse.Namespace) -> None:
    config = msgspec.structs.replace(BrokerConfig(), log_dirs=(str(directory),), log_flush_policy=policy)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as public:
        memory = SharedMemory(Path(public) / "region", Sizes(partition_slots=4096))
        prepare_log_dirs(config)
        process = LogProcess(ProcessContext(LOG, memory, config))
        process.start()
        topic = calls.EnsureTopic("bench", TOPIC, list(range(options.partitions)), {}, 1)
        targets = [(p.slot, p.slot_generation) for p in process.manager.ensure(topic).partitions]
        inbox, outbox = memory.ring(handler(0), LOG), memory.ring(LOG, processor(0))
        slots = descriptors(memory, targets, at_once, options.record_bytes, -1)
        jobs = rounds = 0
        in_turn = 0.0
        began = time.perf_counter()
        while (now := time.perf_counter()) < began + options.seconds:
            inbox.push_batch(slots)
            before = time.perf_counter()
            process.work(0 if policy == "os" else 5)
            in_turn += time.perf_counter() - before
            rounds += 1
            answered = outbox.waiting()
            while answered < at_once and policy == "group":
                process.work(5)
                answered = outbox.waiting()
            jobs += len(outbox.take(4096)[0]) // 64
        wall = now - began
        counters = process.context.counters
        slow, syncs = counters.get(Counter.COUNT_PRODUCE_SLOW), counters.get(Counter.COUNT_COMMIT_ROUNDS)
        print(
            f"{policy:5}  {at_once:5} jobs a round  {options.partitions:4} partitions  "
            f"{jobs / wall / 1000:8.0f} k jobs/s  {in_turn / jobs * 1e9:7.0f} ns of turn each  "
            f"{rounds / wall:8.0f} rounds/s  {syncs / wall:7.0f} commits/s  {slow} slow"
        )
        while not process.turn.is_settled:
            process.work(5)
        process.manager.close_cleanly()
        process.turn.close()
        memory.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--directory", help="where to write; a temporary directory if not given")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument(
        "--jobs", type=int, default=0, help="jobs that wait at once; 1, 64 and 512 if not given"
    )
    options = parser.parse_args()
    for policy in ("os", "group"):
        for jobs in [options.jobs] if options.jobs else [1, 64, 512]:
            with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                measure(Path(directory), policy, jobs, options)


if __name__ == "__main__":
    main()
