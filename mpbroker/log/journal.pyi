from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NAME: str
SMALLEST_BYTES: int
RING_AT: int
BLOCK_BYTES: int

class Extent(NamedTuple):
    topic_id: bytes
    partition: int
    segment_base: int
    position: int
    end_offset: int
    data: memoryview

class JournalDamaged(Exception): ...

def make(fd: int, ring_bytes: int) -> None: ...

class JournalFile:
    fd: int
    path: Path
    def __init__(self, path: Path) -> None: ...
    @property
    def ring_bytes(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def nonce(self) -> int: ...
    @property
    def start(self) -> int: ...
    def records(self) -> Iterator[list[Extent]]: ...
    def survey(self) -> tuple[int, list[tuple[bytes, int, int]]]: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...
