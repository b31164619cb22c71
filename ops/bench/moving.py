"""Produces beside moves of a partition between log directories: `python -m ops.bench.moving`.

A topic of some GB is filled, and taken out of the page cache; then it is moved to the other log directory, on
the same disk, and back again (AlterReplicaLogDirs). Meanwhile 64 connections produce to another topic, which
they do alone before each move as well. What counts is the median of the turns' p99 beside that of the quiet
ones; how fast it goes is told, to a turn.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from ops.bench import frames
from ops.bench.brokers import Mpbroker
from ops.bench.cold import evict
from ops.bench.compaction import COMPACTED_TOPIC, CONNECTIONS, LOADED_TOPIC, TIMES_MAX, fill
from ops.bench.scenarios import Result, build_generator, create_topic, merged, run_load, told

PARTITION = f"{COMPACTED_TOPIC}-0"
MOVES = 2
QUIET_TURNS = 12
TURNS_MAX = 1000


def order_move(broker: Mpbroker, to: Path) -> None:
    with frames.connected(broker.address) as connection:
        error, _ = frames.exchange(connection, frames.alter_replica_log_dir(str(to), COMPACTED_TOPIC, 0))
    assert not error, f"{PARTITION} is not moved to {to}: error {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn")
    parser.add_argument("--megabytes", type=int, default=3000)
    given = parser.parse_args()
    build_generator()
    load = frames.produce(LOADED_TOPIC, 1, 100)
    quiet: list[Result] = []
    beside: list[Result] = []
    moving_s = 0.0
    with tempfile.TemporaryDirectory() as directory:
        dirs = [Path(directory, name) for name in ("one", "other")]
        flags = ("--log-dirs", ",".join(map(str, dirs)), "-o", "log.cleaner.enable=false")
        broker = Mpbroker(Path(directory), flags=flags)
        try:
            broker.start()
            create_topic(broker, LOADED_TOPIC)
            fill(broker, given.megabytes)
            for _ in range(MOVES):
                (here,) = (one for one in dirs if (one / PARTITION).exists())
                (there,) = (one for one in dirs if one != here)
                quiet += [run_load(broker, load, CONNECTIONS, given.seconds) for _ in range(QUIET_TURNS)]
                evict(here / PARTITION)
                order_move(broker, there)
                ordered_s = time.monotonic()
                while not (there / PARTITION).exists() and len(beside) < TURNS_MAX:
                    beside.append(run_load(broker, load, CONNECTIONS, given.seconds))
                moving_s += time.monotonic() - ordered_s
        finally:
            broker.kill()
    times = merged(beside).p99_us / merged(quiet).p99_us
    print(told("quiet", quiet))
    rate = MOVES * given.megabytes / moving_s
    print(told(f"beside moves of {given.megabytes} MB at {rate:.0f} MB/s", beside))
    print(f"that is {times:.1f} times")
    return 0 if times <= TIMES_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
