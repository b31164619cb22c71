"""Write-back of a segment that fails at once: run by itself, with `native/fault.c` loaded.

    LD_PRELOAD=… python -m tests.support.lost_write_back DIRECTORY

It fails once, in one of two log directories. Prints how often it was asked for, what the last produce was
answered there and whether the partition is offline, and both of the other directory's.
"""

import ctypes
import errno
import os
import sys
import tempfile
from pathlib import Path

from mpbroker.ipc.table import PartitionFlag
from tests.support.log_node import Journaled
from tests.support.log_rig import Rig, ensure
from tests.support.log_writer import make_batch

PIECE_BYTES = 1 << 18
WRITE_BACK, ONCE = 5, -1
_native = ctypes.CDLL(None)


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as public:
        rigs: list[Rig] = []

        def make(_: str, **options: object) -> Rig:
            rigs.append(Rig(Path(sys.argv[1], "0"), Path(public, "region"), options))
            return rigs[-1]

        node = Journaled(make, Path(sys.argv[1]), 2)
        node.boot(log_journal_bytes=16 << 20)
        targets = node.open(ensure(2))
        failing = next(one for one in targets if node.rig.partition(one.slot).log_dir == 1)
        other = next(one for one in targets if one is not failing)
        _native.fault_arm(os.fsencode(node.dirs[1]), WRITE_BACK, ONCE, errno.EBADMSG)
        data, errors = make_batch(size=30_000), [0]
        for _ in range(2 * PIECE_BYTES // len(data)):
            errors += node.produce(failing, data)
            if errors[-1]:
                break
        print(_native.fault_count(), errors[-1], is_offline(node, failing.slot))
        print(*node.produce(other, data), is_offline(node, other.slot))
        node.crash()
        for rig in rigs:
            rig.close()


def is_offline(node: Journaled, slot: int) -> bool:
    return bool(node.rig.partition(slot).flags & PartitionFlag.PARTITION_OFFLINE)


if __name__ == "__main__":
    main()
