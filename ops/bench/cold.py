"""Hot fetches, or produces, beside a consumer that reads from the disk: `python -m ops.bench.cold`.

A topic is filled, put on the disk, and taken out of the page cache again and again while one connection reads
it from its beginning; meanwhile others fetch a kilobyte each of another topic, from the same processor. What
counts is the median of their p99 beside that of the same load alone, in turns, so that whatever else happens
on the machine meets both. For comparison the same consumer reads what is in the page cache. `--produces`: the
others have a record made durable each, for which the disk is needed as well.

The consumer drops what it gets within the kernel, and goes no faster than a network would let it: else it is
its own CPU time that is measured, and a broker that sends it more is taken for one that is worse.
"""

import argparse
import os
import socket
import sys
import tempfile
import threading
from pathlib import Path

from mpbroker.log.io.pace import Pace
from mpbroker.storage.residency import resident
from ops.bench import frames
from ops.bench.brokers import Broker, Mpbroker
from ops.bench.scenarios import Result, build_generator, create_topic, in_turns, merged, run_load, told

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
    """Reads the topic from its beginning, evicted each time if it is to be cold, until it is stopped."""

    def __init__(
        self, broker: Broker, directory: Path, batches: int, bytes_per_s: float, *, cold: bool
    ) -> None:
        self._broker = broker
        self._directory = directory
        self._cold = cold
        self._pace = Pace(lambda: bytes_per_s)
        offsets = (1 + batch * RECORDS_PER_BATCH for batch in range(batches))
        self._requests = [frames.fetch(COLD_TOPIC, offset, FETCH_BYTES) for offset in offsets]
        self._scratch = bytearray(2 * FETCH_BYTES)
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
                    if self._cold:
                        evict(self._directory)
                    for request in self._requests:
                        size = self._fetch(connection, request)
                        self.bytes_read += size
                        if self._stopped.wait(max(0.0, self._pace.left_s(self._pace.take(size)))):
                            return
        except BaseException as failure:
            self.failure = failure

    def _fetch(self, connection: socket.socket, request: frames.Request) -> int:
        """-> bytes of the response, of which only the head is looked at."""
        connection.sendall(request.frame)
        head = frames.receive(connection, request.error_at + 2)
        error = int.from_bytes(head[request.error_at :], "big")
        assert not error, f"a fetch was answered with error {error}"
        size = 4 + int.from_bytes(head[:4], "big")
        assert size > RECORDS_PER_BATCH * VALUE_BYTES
        left = size - len(head)
        while left:
            dropped = connection.recv_into(self._scratch, min(left, len(self._scratch)), socket.MSG_TRUNC)
            if not dropped:
                raise ConnectionError("the broker closed the connection")
            left -= dropped
        return size


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument(
        "--produces", action="store_true", help="of a record of 100 bytes, instead of fetches"
    )
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--consumer-megabytes-per-second", type=float, default=200)
    parser.add_argument(
        "--rate", type=float, default=0, help="requests per second; 0: as many as are answered"
    )
    parser.add_argument("--directory", help="on a disk; below it the broker's files are made")
    given = parser.parse_args()
    build_generator()
    batches = (given.megabytes << 20) // (RECORDS_PER_BATCH * VALUE_BYTES)
    bytes_read = {True: 0, False: 0}
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        broker = Mpbroker(Path(directory), flags=FLAGS)
        load = frames.fetch(HOT_TOPIC, offset=50, bytes_max=HOT_BYTES)
        if given.produces:
            load = frames.produce(HOT_TOPIC, 1, 100)

        def alone() -> Result:
            return run_load(broker, load, given.connections, given.seconds, rate=given.rate)

        def beside(cold: bool) -> Result:
            files, bytes_per_s = broker.log_dir / f"{COLD_TOPIC}-0", given.consumer_megabytes_per_second * 1e6
            with CatchUp(broker, files, batches, bytes_per_s, cold=cold) as reader:
                result = alone()
            bytes_read[cold] += reader.bytes_read
            return result

        try:
            broker.start()
            fill(broker, HOT_TOPIC, 100, 1)
            fill(broker, COLD_TOPIC, batches, RECORDS_PER_BATCH)
            os.sync()
            quiet, cold, hot = in_turns(given.turns, alone, lambda: beside(True), lambda: beside(False))
        finally:
            broker.kill()
    times = merged(cold).p99_us / merged(quiet).p99_us
    print(told("quiet", quiet))
    print(told(f"beside {bytes_read[True] >> 20} MiB from the disk", cold))
    print(told(f"beside {bytes_read[False] >> 20} MiB from the page cache", hot))
    print(f"that is {times:.1f} times")
    return 0 if times <= TIMES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
