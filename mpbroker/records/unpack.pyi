from typing_extensions import Buffer

from mpbroker.records.batch import BatchScan

ROOM_BYTES: int
TOO_LARGE: int
LEFT: int
LIBRARIES: dict[int, str]

class BatchUnpacker:
    @property
    def found(self) -> int: ...
    def __init__(self, libraries: dict[int, str] = ...) -> None: ...
    def missing(self) -> list[str]: ...
    def scan(self, data: Buffer, max_message_bytes: int = ...) -> BatchScan: ...
