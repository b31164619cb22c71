"""Exceptions for bad record data.

The constants are the error codes of Kafka (org.apache.kafka.common.protocol.Errors) for record data.
"""

from enum import Enum
from typing import Final, NamedTuple

CORRUPT_MESSAGE: Final = 2
MESSAGE_TOO_LARGE: Final = 10
INVALID_TIMESTAMP: Final = 32
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
INVALID_RECORD: Final = 87


class RecordError(NamedTuple):
    """One refused record of a batch, as in the Produce response: its index and why it is refused."""

    batch_index: int
    message: str


class RecordsError(Exception):
    """The base class of this package's exceptions about record data."""


class CompressionError(RecordsError):
    """Raised for a compressed stream that is malformed, cut off, or decompresses to more than its limit."""


class CorruptBatch(RecordsError):
    """Raised when the bytes at a position of the buffer are not a record batch.

    `offsets` is the range of offsets in the batch's header; None if the header cannot be read.
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

    `code` is Kafka's error code. `faults` is the number of records that metrics count for `fault`.
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
