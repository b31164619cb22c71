"""Hot fetches beside a consumer that reads from the disk: `python -m ops.bench.cold`.

A topic is filled, put on the disk, and taken out of the page cache again and again while one connection reads
it from its beginning; meanwhile others fetch a kilobyte each of another topic, from the same processor. What
counts is their p99 beside that of the same load alone.
"""

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path

from mpbroker.log.residency import resident
from ops.bench import frames
from ops.bench.brokers import Broker, Mpbroker
from ops.bench.scenarios import build_generator, create_topic, run_load

HOT_TOPIC = "hot"
COLD_TOPIC = "cold"
HOT_BYTES = 1000
CONNECTIONS = 4
RECORDS_PER_BATCH = 1000
VALUE_BYTES = 1000
FETCH_BYTES = 1 << 20
TIMES_MAX = 3.0
FLAGS = ("--processors", "1", "--handlers", "1")


def fill(broker: Broker, topic: str, batches: int, records: int) -> None:
    create_topic(broker, topic)
    request = frames.produce(topic, records, VALUE_BYTES)
    with frames.connected(broker.address, timeout_s=120) as connection:
        for _ in range(batches):
            error, _ = frames.exchange(connection, request)
            assert not error, f"topic {topic} was not filled: error {error}"


def evict(directory: Path) -> None:
    """All of the partition's files; raises RuntimeError where that cannot be."""
    for path in directory.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if path.suffix == ".log" and resident(fd, 0, os.fstat(fd).st_size):
                raise RuntimeError(f"the file system of {path} keeps its pages: take a directory on a disk")
        finally:
            os.close(fd)


class CatchUp:
    """Reads the topic from its beginning, evicted each time, until it is stopped."""

    def __init__(self, broker: Broker, directory: Path, batches: int) -> None:
        self._broker = broker
        self._directory = directory
        self._batches = batches
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.bytes_read = 0
        self.failure: BaseException | None = None

    def __enter__(self) -> "CatchUp":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with frames.connected(self._broker.address, timeout_s=60) as connection:
                while not self._stopped.is_set():
                    evict(self._directory)
                    for batch in range(self._batches):
                        if self._stopped.is_set():
                            return
                        request = frames.fetch(COLD_TOPIC, 1 + batch * RECORDS_PER_BATCH, FETCH_BYTES)
                        error, response = frames.exchange(connection, request)
                        assert not error, f"a fetch was answered with error {error}"
                        assert len(response) > RECORDS_PER_BATCH * VALUE_BYTES
                        self.bytes_read += len(response)
        except BaseException as failure:
            self.failure = failure


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--directory", help="on a disk; below it the broker's files are made")
    given = parser.parse_args()
    build_generator()
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        broker = Mpbroker(Path(directory), flags=FLAGS)
        try:
            broker.start()
            fill(broker, HOT_TOPIC, 100, 1)
            batches = (given.megabytes << 20) // (RECORDS_PER_BATCH * VALUE_BYTES)
            fill(broker, COLD_TOPIC, batches, RECORDS_PER_BATCH)
            os.sync()
            load = frames.fetch(HOT_TOPIC, offset=50, bytes_max=HOT_BYTES)
            quiet = run_load(broker, load, CONNECTIONS, given.seconds)
            with CatchUp(broker, broker.log_dir / f"{COLD_TOPIC}-0", batches) as reader:
                busy = run_load(broker, load, CONNECTIONS, given.seconds)
        finally:
            broker.kill()
    times = busy.p99_us / quiet.p99_us
    print(f"quiet: {quiet.requests_per_s:,.0f}/s, p99 {quiet.p99_us:,.0f} us, p99.9 {quiet.p999_us:,.0f} us")
    print(
        f"beside {reader.bytes_read >> 20} MiB from the disk: {busy.requests_per_s:,.0f}/s, "
        f"p99 {busy.p99_us:,.0f} us, p99.9 {busy.p999_us:,.0f} us"
    )
    print(f"that is {times:.1f} times")
    return 0 if times <= TIMES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
