"""What can be wrong with record data, as exceptions.

The codes are Kafka's (org.apache.kafka.common.protocol.Errors), the few that record data can earn.
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
    """The root of what this package raises about data."""


class CompressionError(RecordsError):
    """A compressed stream is malformed, cut off, or larger than its bound."""


class CorruptBatch(RecordsError):
    """Bytes that are no record batch, found while reading at a position of the buffer."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"corrupt record batch at position {position}: {reason}")
        self.position = position
        self.reason = reason


class Fault(Enum):
    """What broker metrics tell apart among refused records (Kafka: LogValidator.MetricsRecorder)."""

    OTHER = 0
    NO_KEY_COMPACTED = 1
    INVALID_MAGIC = 2
    INVALID_CRC = 3
    INVALID_OFFSET_OR_SEQUENCE = 4


class InvalidRecords(RecordsError):
    """A produced batch is refused, as a whole, with a Kafka error code; `faults`: records of that fault."""

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
