"""The stream of records within a batch: walked, read into objects, written from them, renumbered."""

from typing_extensions import Buffer

from mpbroker.records.batch import WalkScan
from mpbroker.records.record import NewRecord, Record

class RecordWriter:
    count: int
    max_timestamp: int
    def __init__(self, base_timestamp: int) -> None: ...
    def add(self, record: NewRecord, offset_delta: int = -1) -> None: ...
    def finish(self) -> bytearray: ...

class RecordWalker:
    def __init__(self, data: Buffer, count: int, base_timestamp: int) -> None: ...
    def step(self, most_bytes: int) -> bool: ...
    def result(self) -> WalkScan: ...

class RecordRules:
    def __init__(
        self,
        data: Buffer,
        count: int,
        base_timestamp: int,
        *,
        keyed: bool,
        earliest: int,
        latest: int,
        refuses_all: bool,
        most: int,
    ) -> None: ...
    @property
    def refused(self) -> list[tuple[int, int, bool]]: ...
    @property
    def refused_count(self) -> int: ...
    @property
    def keyless_count(self) -> int: ...
    def step(self, most_bytes: int) -> bool: ...

class TimeSearch:
    def __init__(
        self,
        count: int,
        base_offset: int,
        base_timestamp: int,
        append_time: int | None,
        *,
        wanted: int,
        from_offset: int,
    ) -> None: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def offset(self) -> int: ...
    def step(self, data: Buffer, most_bytes: int, is_whole: bool) -> bool: ...

class Renumbering:
    def __init__(self, data: Buffer, count: int) -> None: ...
    def take(self, most_bytes: int) -> bytearray: ...

def read_records(
    data: Buffer, count: int, base_offset: int, base_timestamp: int, append_time: int | None = None
) -> list[Record]: ...
def seal(
    batch: Buffer,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> None: ...
