"""Measures loads alone and with a disturbance: `make bench-beside` (ARGS='cold moving': only these two).

An experiment runs its load alone and with the disturbance in turns, so that other work on the machine
affects both. It fails if the median p99 with the disturbance is more than a bound times the median p99 of
the load alone. A load sends a request when the one before is answered, which uses all CPUs; `--rate` makes
it slower.

* cold: a consumer reads a topic repeatedly; before each repetition the topic is removed from the page cache.
  The consumer has the kernel drop the responses, and reads no faster than a network would, so that its own
  CPU time does not disturb.
  `cached`: the topic stays in the page cache. `cold-produces`: the load produces durably instead of fetching.
* compaction: a topic of some GB is compacted; the cleaner is stopped (SIGSTOP) while the load runs alone.
* moving: a partition moves between log directories (AlterReplicaLogDirs), and back.
* large-answers: a client fetches 100 MB at a time.
* heavy-…: a handler needs seconds for a produce, whose batch it recompresses with gzip's slowest level. If
  the frame is large, the processor sees that, and gives the handler no other request with this one. If
  the batch is compressed, the frame has only a few KB, and only the handler finds out how large it is.
* connections: ten thousand idle connections, each of which has made a request. Their memory and CPU have
  bounds of their own; the rate of the load may lose a tenth.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mpbroker.log.io.pace import Pace
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage.residency import resident
from ops.bench import frames
from ops.bench.brokers import Broker, BrokerError, Mpbroker
from ops.bench.processes import title_of
from ops.bench.scenarios import LoadError, Result, build_generator, create_topic, merged, run_load
from ops.bench.start import Bounds

LOADED, OTHER = "loaded", "other"
RECORDS_PER_BATCH = VALUE_BYTES = 1000
FETCH_BYTES = 1 << 20
CONSUMER_BYTES_PER_S = 200e6
LARGE_BYTES = 100_000_000
COMPACTION_DONE = "is clean up to offset"
KEYS = 300_000
IDLE, IDLE_BYTES_MAX, IDLE_CPU_PERCENT_MAX = 10_000, 12 << 10, 1.0
# Connections that are set up at a time, and the longest mean time between two: 8,000 a second.
SETUPS, SETUP_US_MAX = 8, 125.0
# Descriptors that the broker and the load each need besides their connections.
SPARE_DESCRIPTORS = 500
# zlib's level 9 is slowest with random text of two letters: about half a megabyte a second. The text repeats
# at a distance that zstd can use and gzip cannot: it is small to send with zstd, and slow to pack with gzip.
SLOW_BYTES_PER_S, REPEATED_BYTES, COMPRESSED_BYTES_MAX = 420_000, 64 << 10, 64 << 10
SLOW = {"compression.type": "gzip", "compression.gzip.level": "9", "max.message.bytes": str(64 << 20)}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": str(100 << 20)}
CLEANING = ("--processors", "1", "-o", "log.flush.offset.checkpoint.interval.ms=1000")
# More turns than any disturbance lasts.
UNTIL_OVER = 1000

Lasts = Callable[[], bool]
"""Returns whether the disturbance continues: then the load is measured under it again."""


@dataclass
class Trial:
    """An experiment that runs. `is_over`: the disturbance ended during a turn, so that turn is dropped."""

    broker: Mpbroker
    directory: Path
    megabytes: int
    seconds: float
    bounds: Bounds
    is_over: bool = False
    notes: list[str] = field(default_factory=list)


Disturb = Callable[[Trial], AbstractContextManager[Lasts]]


@dataclass(frozen=True)
class Experiment:
    """A load and a disturbance, which may make the load's `figure` worse by at most the factor `times_max`.

    `quiet`: how many measurements of the load alone are in each turn. `{directory}` in `flags` stands for the
    directory of the experiment.
    """

    load: frames.Request
    disturb: Disturb
    prepare: Callable[[Trial], None]
    connections: int
    times_max: float
    flags: Sequence[str] = ()
    figure: str = "p99_us"
    turns: int = 7
    quiet: int = 1
    seconds: float = 0.5
    megabytes: int = 0


def once() -> bool:
    return False


def exchange(connection: socket.socket, request: frames.Request) -> None:
    error, _ = frames.exchange(connection, request)
    assert not error, f"a request is answered with error {error}"


def fill(broker: Broker, topic: str, batches: int, records: int, value_bytes: int = VALUE_BYTES) -> None:
    """Write batches to a topic, after the one record that `create_topic` has written there."""
    request = frames.produce(topic, records, value_bytes)
    with frames.connected(broker.address, timeout_s=120) as connection:
        for _ in range(batches):
            exchange(connection, request)


def fetch_and_drop(connection: socket.socket, request: frames.Request, least_bytes: int) -> int:
    """Fetch more than `least_bytes`. The kernel drops the response except its head. Return its size."""
    connection.sendall(request.frame)
    head = frames.receive(connection, request.error_at + 2)
    error, size = int.from_bytes(head[request.error_at :]), 4 + int.from_bytes(head[:4])
    assert not error, f"a fetch is answered with error {error}"
    assert size > least_bytes, f"the response has {size} bytes"
    left, scratch = size - len(head), bytearray(1 << 20)
    while left:
        dropped = connection.recv_into(scratch, min(left, len(scratch)), socket.MSG_TRUNC)
        if not dropped:
            raise ConnectionError("the broker closed the connection")
        left -= dropped
    return size


@contextmanager
def repeated(step: Callable[[], float]) -> Iterator[None]:
    """Call `step` repeatedly in a thread while the body runs. `step` returns the seconds to wait after it.

    Raises the error of `step`.
    """
    stopped, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not stopped.wait(step()):
                pass
        except BaseException as failure:  # noqa: BLE001 - raised when the body ends
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        if failures:
            raise failures[0]


# ---- reads from the disk


def evict(directory: Path) -> None:
    """Drop a directory's files from the page cache. Raises RuntimeError if pages stay there."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if path.suffix == ".log" and resident(file.fileno(), 0, os.fstat(file.fileno()).st_size):
                raise RuntimeError(f"the file system of {path} keeps its pages: take a directory on a disk")


def prepare_reads(trial: Trial) -> None:
    create_topic(trial.broker, OTHER)
    fill(trial.broker, LOADED, 100, 1)
    fill(trial.broker, OTHER, (trial.megabytes << 20) // (RECORDS_PER_BATCH * VALUE_BYTES), RECORDS_PER_BATCH)
    os.sync()


@contextmanager
def reads(trial: Trial, *, cold: bool) -> Iterator[Lasts]:
    batches = (trial.megabytes << 20) // (RECORDS_PER_BATCH * VALUE_BYTES)
    numbers, pace = itertools.cycle(range(batches)), Pace(lambda: CONSUMER_BYTES_PER_S)
    with frames.connected(trial.broker.address, timeout_s=60) as connection:

        def step() -> float:
            number = next(numbers)
            if cold and not number:
                evict(trial.broker.log_dir / f"{OTHER}-0")
            request = frames.fetch(OTHER, 1 + number * RECORDS_PER_BATCH, FETCH_BYTES)
            size = fetch_and_drop(connection, request, RECORDS_PER_BATCH * VALUE_BYTES)
            return max(0.0, pace.left_s(pace.take(size)))

        with repeated(step):
            yield once


# ---- compaction and moves


def fill_with_keys(trial: Trial) -> None:
    chance = random.Random(1)
    value = chance.randbytes(VALUE_BYTES)
    with frames.connected(trial.broker.address, timeout_s=120) as connection:
        exchange(connection, frames.create_topic(OTHER, 1, COMPACTED))
        for _ in range((trial.megabytes << 20) // (RECORDS_PER_BATCH * VALUE_BYTES)):
            keys = (b"%d" % chance.randrange(KEYS) for _ in range(RECORDS_PER_BATCH))
            batch = build_batch(NewRecord(value, key, 1_700_000_000_000) for key in keys)
            # Until the topic has a leader.
            while (error := frames.exchange(connection, frames.produce_batch(OTHER, batch))[0]) == 3:
                time.sleep(0.05)
            assert not error, f"topic {OTHER} was not filled: error {error}"


def prepare_compaction(trial: Trial) -> None:
    fill_with_keys(trial)
    trial.broker.stop()
    os.sync()
    trial.broker.flags = (*CLEANING, "-o", "log.cleaner.backoff.ms=1000")
    trial.broker.start()
    for member in trial.broker.tree().members():
        if title_of(member) == "cleaner":
            member.suspend()


@contextmanager
def compaction(trial: Trial) -> Iterator[Lasts]:
    (cleaner,) = (one for one in trial.broker.tree().members() if title_of(one) == "cleaner")
    cleaner.resume()
    yield once
    trial.is_over = COMPACTION_DONE in trial.broker.output()
    if trial.is_over:
        trial.notes += [line for line in trial.broker.output().splitlines() if COMPACTION_DONE in line]
    else:
        cleaner.suspend()


@contextmanager
def move(trial: Trial) -> Iterator[Lasts]:
    dirs, partition = [trial.directory / name for name in ("one", "two")], f"{OTHER}-0"
    here, there = sorted(dirs, key=lambda one: not (one / partition).exists())
    evict(here / partition)
    began = time.monotonic()
    with frames.connected(trial.broker.address) as connection:
        exchange(connection, frames.alter_replica_log_dir(str(there), OTHER, 0))
    yield lambda: not (there / partition).exists()
    trial.notes.append(f"moved at {trial.megabytes / (time.monotonic() - began):.0f} MB/s, to a turn")


# ---- large answers, heavy requests, idle connections


def prepare_large(trial: Trial) -> None:
    create_topic(trial.broker, OTHER)
    fill(trial.broker, OTHER, LARGE_BYTES // 1_000_000 + 1, 1, 1_000_000)


@contextmanager
def large_answers(trial: Trial) -> Iterator[Lasts]:
    request = frames.fetch(OTHER, 0, LARGE_BYTES, LARGE_BYTES)
    with frames.connected(trial.broker.address, timeout_s=120) as connection:

        def step() -> float:
            fetch_and_drop(connection, request, LARGE_BYTES // 2)
            return 0.0

        with repeated(step):
            yield once


def prepare_heavy(trial: Trial) -> None:
    with frames.connected(trial.broker.address) as connection:
        exchange(connection, frames.create_topic(OTHER, 1, SLOW))


def heavy_request(seconds: float, *, compressed: bool) -> frames.Request:
    """Return a produce of one batch that takes about `seconds` to recompress."""
    size = int(seconds * SLOW_BYTES_PER_S)
    text = bytes(random.Random(1).choices(b"ab", k=REPEATED_BYTES if compressed else size))
    text = (text * (size // len(text) + 1))[:size]
    request = frames.produce_value(OTHER, text, zstd=compressed)
    assert not compressed or len(request.frame) < COMPRESSED_BYTES_MAX, f"{len(request.frame)} bytes"
    return request


@contextmanager
def heavy(trial: Trial, *, compressed: bool) -> Iterator[Lasts]:
    request = heavy_request(2 * trial.seconds + 2, compressed=compressed)
    with frames.connected(trial.broker.address, timeout_s=120) as connection:
        sending = threading.Thread(target=exchange, args=(connection, request))
        sending.start()
        yield once
        assert sending.is_alive(), "the heavy request was over before the load"
        sending.join()


@contextmanager
def idle_connections(broker: Broker, count: int) -> Iterator[None]:
    """Open `count` connections, and send a request on each, so that the broker has used buffers for all."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(broker.address, timeout=30)) for _ in range(count)
        ]
        for connection in opened:
            frames.exchange(connection, frames.api_versions())
        yield


def prepare_idle(trial: Trial) -> None:
    setups = run_load(trial.broker, frames.api_versions(), SETUPS, trial.seconds, reconnect=True)
    trial.bounds.hold("a connection is set up within", 1e6 / setups.requests_per_s, SETUP_US_MAX, "µs")


@contextmanager
def idle(trial: Trial) -> Iterator[Lasts]:
    tree = trial.broker.tree()
    before = tree.pss_bytes()
    with idle_connections(trial.broker, IDLE):
        each = (tree.pss_bytes() - before) / IDLE
        trial.bounds.hold("memory of an idle connection", each, IDLE_BYTES_MAX, "bytes")
        percent = tree.idle_cpu_percent(trial.seconds)
        trial.bounds.hold(f"CPU of {IDLE:,} idle connections", percent, IDLE_CPU_PERCENT_MAX, "%")
        yield once


# ---- the table

FETCH, PRODUCE = frames.fetch(LOADED, 0, 100), frames.produce(LOADED, 1, 100)
KILOBYTE = frames.fetch(LOADED, offset=50, bytes_max=1000)
ONE_EACH = ("--processors", "1", "--handlers", "1")
TWO_DIRS = ("--log-dirs", "{directory}/one,{directory}/two", "-o", "log.cleaner.enable=false")
FREE = ("-o", "log.flush.policy=os", "-o", "socket.listen.backlog.size=4096")
LARGE = ("--processors", "1", "-o", "log.flush.policy=os", "-o", f"fetch.max.bytes={2 * LARGE_BYTES}")
EXPERIMENTS = {
    "cold": Experiment(KILOBYTE, partial(reads, cold=True), prepare_reads, 4, 3.0, ONE_EACH, megabytes=400),
    "cold-produces": Experiment(
        PRODUCE, partial(reads, cold=True), prepare_reads, 4, 3.0, ONE_EACH, megabytes=400
    ),
    "cached": Experiment(
        KILOBYTE, partial(reads, cold=False), prepare_reads, 4, 3.0, ONE_EACH, megabytes=400
    ),
    "compaction": Experiment(
        PRODUCE,
        compaction,
        prepare_compaction,
        64,
        2.0,
        (*CLEANING, "-o", "log.cleaner.enable=false"),
        turns=UNTIL_OVER,
        megabytes=5000,
    ),
    "moving": Experiment(PRODUCE, move, fill_with_keys, 64, 2.0, TWO_DIRS, turns=2, quiet=12, megabytes=3000),
    "large-answers": Experiment(FETCH, large_answers, prepare_large, 200, 5.0, LARGE, turns=1, seconds=3),
    **{
        f"heavy-{name}-{kind}": Experiment(
            load, partial(heavy, compressed=kind == "compressed"), prepare_heavy, 8, 3.0, turns=1, seconds=5
        )
        for name, load in (("produce", PRODUCE), ("fetch", FETCH))
        for kind in ("large", "compressed")
    },
    "connections": Experiment(
        PRODUCE, idle, prepare_idle, 64, 1 / 0.9, FREE, "requests_per_s", turns=2, seconds=2
    ),
}


def line_of(name: str, rounds: Sequence[Result]) -> str:
    result, p99 = merged(rounds), sorted(one.p99_us for one in rounds)
    return (
        f"{name}: {result.requests_per_s:,.0f}/s, p50 {result.p50_us:,.0f} us, p99 {result.p99_us:,.0f} us "
        f"({len(p99)} turns, a tenth over {p99[len(p99) * 9 // 10]:,.0f})"
    )


def run(name: str, given: argparse.Namespace, bounds: Bounds) -> None:
    """Run an experiment and print its result. Raises BrokerError, LoadError."""
    row = EXPERIMENTS[name]
    connections, seconds = given.connections or row.connections, given.seconds or row.seconds
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        flags = [flag.format(directory=directory) for flag in row.flags]
        broker = Mpbroker(Path(directory), flags=flags)
        trial = Trial(broker, Path(directory), given.megabytes or row.megabytes, seconds, bounds)

        def take() -> Result:
            return run_load(broker, row.load, connections, seconds, rate=given.rate)

        quiet, loaded = list[Result](), list[Result]()
        try:
            broker.start()
            create_topic(broker, LOADED)
            row.prepare(trial)
            for _ in range(given.turns or row.turns):
                alone = [take() for _ in range(row.quiet)]
                with row.disturb(trial) as lasts:
                    disturbed = [take()]
                    while lasts():
                        disturbed.append(take())
                if trial.is_over:
                    break
                quiet += alone
                loaded += disturbed
        finally:
            broker.kill()
    if not loaded:
        raise LoadError("the disturbance was over before its first turn")
    print(line_of("  alone", quiet), line_of("  disturbed", loaded), *trial.notes, sep="\n")
    now, before = (float(getattr(merged(results), row.figure)) for results in (loaded, quiet))
    times = before / now if row.figure == "requests_per_s" else now / before
    bounds.hold(f"{name}, {row.figure} disturbed", times, row.times_max, "times that alone")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}; all if none")
    parser.add_argument("--seconds", type=float, help="of each turn")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--connections", type=int, help="that make the load")
    parser.add_argument("--megabytes", type=int, help="of what disturbs, where it is data")
    parser.add_argument("--rate", type=float, default=0, help="requests a second; 0: as many as are answered")
    parser.add_argument("--directory", help="on a disk; below it the broker's files are made")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in EXPERIMENTS]:
        parser.error(f"there is no {unknown[0]}: {', '.join(EXPERIMENTS)}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if "connections" in (given.names or EXPERIMENTS) and hard < IDLE + SPARE_DESCRIPTORS:
        print(
            f"bench-beside: connections need {IDLE + SPARE_DESCRIPTORS} descriptors, `ulimit -Hn` is {hard}"
        )
        return 2
    build_generator()
    bounds = Bounds()
    for name in given.names or EXPERIMENTS:
        print(f"{name}:", flush=True)
        try:
            run(name, given, bounds)
        except (BrokerError, LoadError, OSError, AssertionError, RuntimeError) as error:
            print(f"bench-beside: {name}: {error}", file=sys.stderr)
            bounds.missed.append(name)
    print(*(f"missed: {', '.join(bounds.missed)}" for _ in bounds.missed[:1]))
    return 1 if bounds.missed else 0


if __name__ == "__main__":
    sys.exit(main())
