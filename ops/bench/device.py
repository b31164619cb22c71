"""Measure the bare disk below a log directory: `python -m ops.bench.device DIR`.

The program does what a broker's commit round does: one write of the round's size to a file whose blocks are
allocated, and one fdatasync. Each write follows the one before, and begins at the file's start again when the
file is full. Writes bypass the page cache, like those of the commit journal (mpbroker/log/append/flusher.h).
Compare the bench's figures for durable produces with these times.
"""

from __future__ import annotations

import argparse
import errno
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SECTOR_BYTES = 512
FILE_BYTES = 64 << 20
# A record of the commit journal around the batches of one segment (mpbroker/storage/journal.h).
RECORD_BYTES = 88
# Beside a row of a table.
BESIDE_S = 1.0
SIZES = (512, 4096, 33 << 10, 130 << 10)


class Device(NamedTuple):
    """Times of commit rounds of `round_bytes`. `direct` is False if the file system refuses O_DIRECT."""

    round_bytes: int
    rounds_per_s: float
    p50_us: float
    p99_us: float
    direct: bool

    def __str__(self) -> str:
        how = "" if self.direct else " by way of the page cache, the file system refuses O_DIRECT"
        return (
            f"write and sync of {self.round_bytes:,} bytes {self.p50_us:,.0f} us, p99 {self.p99_us:,.0f} us, "
            f"{self.rounds_per_s:,.0f}/s{how}"
        )


def whole_sectors(payload_bytes: float) -> int:
    """Return how many bytes the commit journal writes for a round with `payload_bytes` of batches."""
    return -(-int(payload_bytes + RECORD_BYTES) // SECTOR_BYTES) * SECTOR_BYTES


def _open_direct(path: Path) -> tuple[int, bool]:
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC), False


def measure(directory: Path, round_bytes: int, seconds: float) -> Device:
    """Write rounds one after the other to a file in the directory. Raises OSError."""
    if round_bytes <= 0 or round_bytes % SECTOR_BYTES or round_bytes > FILE_BYTES:
        raise ValueError(
            f"{round_bytes} is not a size of a round: multiples of {SECTOR_BYTES} up to {FILE_BYTES}"
        )
    took_ns: list[int] = []
    with tempfile.NamedTemporaryFile(dir=directory) as file, mmap.mmap(-1, round_bytes) as aligned:
        for _ in range(FILE_BYTES >> 20):
            file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        aligned[:] = b"x" * round_bytes
        fd, direct = _open_direct(Path(file.name))
        try:
            at, began = 0, time.perf_counter_ns()
            until = now = began
            until += int(seconds * 1e9)
            while now < until:
                os.pwrite(fd, aligned, at)
                os.fdatasync(fd)
                before, now = now, time.perf_counter_ns()
                took_ns.append(now - before)
                at = at + round_bytes if at + 2 * round_bytes <= FILE_BYTES else 0
        finally:
            os.close(fd)
    took_ns.sort()
    p50, p99 = (took_ns[int(len(took_ns) * share)] / 1e3 for share in (0.5, 0.99))
    return Device(round_bytes, len(took_ns) / ((now - began) / 1e9), p50, p99, direct)


class Compared(NamedTuple):
    """The times of a broker's commit rounds, and of rounds of the same size on the bare disk."""

    rounds: int
    sync_us: float
    device: Device

    def __str__(self) -> str:
        return f"{self.rounds:,} commit rounds took {self.sync_us:,.0f} us each; bare device: {self.device}"


def compared(directory: Path, rounds: int, appended_bytes: int, sync_ns: int) -> Compared:
    """Measure the disk with rounds of the broker's mean size; return the times of broker and disk."""
    found = measure(directory, whole_sectors(appended_bytes / rounds), BESIDE_S)
    return Compared(rounds, sync_ns / rounds / 1e3, found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="on the file system of the log directory")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each size (%(default)s)")
    parser.add_argument("--bytes", type=int, nargs="*", default=SIZES, help="sizes of a round")
    given = parser.parse_args(arguments)
    try:
        for size in given.bytes:
            print(measure(given.directory, size, given.seconds), flush=True)
    except (OSError, ValueError) as error:
        print(f"device: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
