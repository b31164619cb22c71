from typing import NamedTuple

class BatchAt(NamedTuple):
    base_offset: int
    last_offset: int
    position: int
    length: int
    max_timestamp: int

def find_offset(fd: int, position: int, end: int, offset: int, strict: bool = False) -> BatchAt | None: ...
def find_timestamp(
    fd: int, position: int, end: int, offset: int, timestamp_ms: int, strict: bool = False
) -> BatchAt | None: ...
def batches(fd: int, position: int, end: int) -> list[BatchAt]: ...
