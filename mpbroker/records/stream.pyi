"""The stream of records within a batch: read into objects, written from them, renumbered."""

from typing_extensions import Buffer

from mpbroker.records.record import NewRecord, Record

class RecordWriter:
    count: int
    max_timestamp: int
    def __init__(self, base_timestamp: int) -> None: ...
    def add(self, record: NewRecord, offset_delta: int = -1) -> None: ...
    def finish(self) -> bytearray: ...

def read_records(
    data: Buffer, count: int, base_offset: int, base_timestamp: int, append_time: int | None = None
) -> list[Record]: ...
def renumber_records(data: Buffer, count: int) -> bytes: ...
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
