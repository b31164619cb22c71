"""Records as objects, which readers of batches return and builders take (Kafka: SimpleRecord)."""

from typing import Final

import msgspec

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

Header = tuple[str, bytes | None]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record that was read from a batch. `timestamp` is in ms since 1970, or -1 for none."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to be written to a batch. `timestamp` is in ms since 1970, or -1 for none."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = -1
    headers: tuple[Header, ...] = ()
