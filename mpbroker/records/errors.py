"""Exceptions for bad record data.

The codes are those of Kafka's (org.apache.kafka.common.protocol.Errors) that record data can cause.
"""

from enum import Enum
from typing import Final, NamedTuple

CORRUPT_MESSAGE: Final = 2
MESSAGE_TOO_LARGE: Final = 10
INVALID_TIMESTAMP: Final = 32
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
INVALID_RECORD: Final = 87


class RecordError(NamedTuple):
    """One refused record of a batch, as the produce response names it."""

    batch_index: int
    message: str


class RecordsError(Exception):
    """The base class of this package's exceptions about data."""


class CompressionError(RecordsError):
    """Raised for a compressed stream that is malformed, cut off, or larger than its bound."""


class CorruptBatch(RecordsError):
    """Raised when the bytes at a position of the buffer are not a record batch.

    `offsets`: those of its header; None if it cannot be read.
    """

    def __init__(self, position: int, reason: str, offsets: range | None = None) -> None:
        super().__init__(f"corrupt record batch at position {position}: {reason}")
        self.position = position
        self.reason = reason
        self.offsets = offsets


class Fault(Enum):
    """The kinds of refused records that broker metrics count (Kafka: LogValidator.MetricsRecorder)."""

    OTHER = 0
    NO_KEY_COMPACTED = 1
    INVALID_MAGIC = 2
    INVALID_CRC = 3
    INVALID_OFFSET_OR_SEQUENCE = 4


class InvalidRecords(RecordsError):
    """Raised when a produced batch is refused as a whole.

    `code`: Kafka's error code. `faults`: the number of records with this fault.
    """

    def __init__(
        self,
        code: int,
        message: str,
        record_errors: tuple[RecordError, ...] = (),
        fault: Fault = Fault.OTHER,
        faults: int = 1,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.record_errors = record_errors
        self.fault = fault
        self.faults = faults
