"""Columns of Arrow's layout, encoded into record batches: the reverse of arrow.pyx."""

from typing import Final, NamedTuple

from typing_extensions import Buffer

from mpbroker.records.addresses import Binary, Headers, Numbers

NO_TOPIC: Final[int]
NO_SUCH_PARTITION: Final[int]

class Encoded(NamedTuple):
    target: int
    data: bytearray
    records: int
    base_timestamp: int
    max_timestamp: int

class Encoder:
    def __new__(cls, batch_bytes: int) -> Encoder: ...
    def append(
        self,
        targets: Buffer,
        key: Binary | None,
        value: Binary | None,
        timestamps: Numbers | None,
        now_ms: int,
        headers: Headers | None = None,
    ) -> list[Encoded]: ...
    def finish(self) -> list[Encoded]: ...

def murmur2(data: Buffer) -> int: ...
def assign_targets(
    rows: int,
    topics: Numbers | None,
    first_targets: Buffer,
    partition_counts: Buffer,
    keyless: Buffer,
    key: Binary | None,
    partitions: Numbers | None,
    targets: Buffer,
) -> int: ...
