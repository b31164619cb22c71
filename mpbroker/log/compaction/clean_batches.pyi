from enum import IntEnum

from typing_extensions import Buffer

from mpbroker.log.compaction.offset_map import OffsetMap
from mpbroker.log.partition.state import PartitionState
from mpbroker.storage.producer_state import Producers

class Stop(IntEnum):
    END = 0
    FOR_PYTHON = 1
    FULL = 2

class Verdict(IntEnum):
    DROPPED = 0
    COPIED = 1
    EMPTIED = 2
    REBUILT = 3

class BatchWalk:
    piece: bytes
    at: int
    def __init__(self, piece: bytes) -> None: ...

class Filter:
    records_read: int
    records_kept: int
    def __init__(
        self, offsets: OffsetMap, producers: Producers, now_ms: int, delete_retention_ms: int, end: int
    ) -> None: ...
    def into(self, segment: PartitionState) -> None: ...
    def take(self) -> bytes: ...
    def plain(self, walk: BatchWalk) -> int: ...
    def judge_one(self, walk: BatchWalk, stream: Buffer, discards: bool, marks_nothing: bool) -> int: ...
    def rebuilt(self, walk: BatchWalk, stream: Buffer, marks_nothing: bool) -> bytes: ...
    def put(self, walk: BatchWalk, compressed: Buffer, marks_nothing: bool) -> None: ...

def map_plain(walk: BatchWalk, offsets: OffsetMap, start: int) -> int: ...
def map_one(walk: BatchWalk, offsets: OffsetMap, start: int, stream: Buffer) -> int: ...
