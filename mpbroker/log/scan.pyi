from typing import NamedTuple

class BatchAt(NamedTuple):
    base_offset: int
    last_offset: int
    position: int
    length: int
    max_timestamp: int
    leader_epoch: int

def find_offset(fd: int, position: int, end: int, offset: int, strict: bool = False) -> BatchAt | None: ...
def find_timestamp(
    fd: int, position: int, end: int, offset: int, timestamp_ms: int, strict: bool = False
) -> BatchAt | None: ...
def batches(fd: int, position: int, end: int) -> list[BatchAt]: ...
def last_batch(fd: int, position: int, end: int) -> BatchAt | None: ...
def epochs_in(fd: int, position: int, end: int) -> list[tuple[int, int]]: ...
