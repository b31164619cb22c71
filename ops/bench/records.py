"""Micro benchmark of the record path: the checksum, the check of a produced batch, and the decode into Arrow.

python -m ops.bench.records [SECONDS PER FIGURE]      best of five; one core
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa  # type: ignore[import-untyped]

from mpbroker.records.arrow_batches import SCHEMA, arrow_batches
from mpbroker.records.batch import BATCH_OK, assign_offset_and_epoch, bench_scan, checksum
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from ops.bench.timing import best_seconds

T = 1700000000000
ROUNDS = 5


def batch_of(count: int, value_bytes: int, codec: Codec = Codec.NONE) -> bytearray:
    return build_batch([NewRecord(b"v" * value_bytes, b"%08d" % i, T + i) for i in range(count)], codec=codec)


def log_of(batch: bytearray, total_bytes: int) -> tuple[bytes, int]:
    log, offset = bytearray(), 0
    count = 500
    while len(log) < total_bytes:
        assign_offset_and_epoch(batch, offset, 0)
        log += batch
        offset += count
    return bytes(log), offset


def bench_checksum(budget: float) -> None:
    for size in (150, 16 << 10, 1 << 20):
        data = bytes(size)
        seconds = best_seconds(partial(checksum, data), rounds=ROUNDS, round_s=budget / ROUNDS)
        print(
            f"checksum      {size:>8} bytes      {seconds * 1e9:>10.0f} ns {size / seconds / 1e9:>7.1f} GB/s"
        )


def bench_validation(budget: float) -> None:
    for count, value_bytes in ((1, 100), (160, 100), (9000, 100), (900, 1024)):
        batch = batch_of(count, value_bytes)
        verdict, nanoseconds = bench_scan(batch, max(1, int(budget * 1e9 / ROUNDS / (50 + len(batch) / 8))))
        assert verdict == BATCH_OK
        print(
            f"validate      {count:>8} x {value_bytes:>4} bytes {nanoseconds:>9.0f} ns "
            f"{len(batch) / nanoseconds:>7.1f} GB/s {nanoseconds / count:>7.1f} ns/record"
        )


def bench_arrow(budget: float) -> None:
    choices = {
        "5 columns": SCHEMA.names[:5],
        "with headers": SCHEMA.names,
        "value": ["value"],
        "offset": ["offset"],
    }
    for codec in (Codec.NONE, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        log, records = log_of(batch_of(500, 100, codec), 64 << 20 if codec is Codec.NONE else 4 << 20)
        for name, columns in choices.items() if codec is Codec.NONE else [("5 columns", SCHEMA.names[:5])]:
            schema = pa.schema([SCHEMA.field(column) for column in columns])
            for check_crc in (True, False):
                decode = partial(arrow_batches, log, schema, check_crc=check_crc)
                seconds = best_seconds(partial(count_rows, decode), rounds=ROUNDS, round_s=budget / ROUNDS)
                label = f"{codec.name.lower()}, {name}{'' if check_crc else ', no CRC'}"
                print(f"Arrow decode  {label:<28} {records / seconds / 1e6:>7.1f} million records/s")


def count_rows(decode: Callable[[], Iterator[pa.RecordBatch]]) -> int:
    return sum(batch.num_rows for batch in decode())


def main() -> None:
    budget = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    bench_checksum(budget)
    bench_validation(budget)
    bench_arrow(budget)


if __name__ == "__main__":
    main()
