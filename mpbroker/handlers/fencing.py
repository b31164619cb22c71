"""A producer that another one has replaced: how clients of each version are told.

(Kafka: KafkaApis, which has these lines in each of its handlers; KIP-588.)
"""

from __future__ import annotations

from mpbroker.protocol.errors import ErrorCode


def told_to(version: int, code: int, first_that_knows: int) -> int:
    """PRODUCER_FENCED is INVALID_PRODUCER_EPOCH to whoever does not know it."""
    is_known = version >= first_that_knows or code != ErrorCode.PRODUCER_FENCED
    return code if is_known else ErrorCode.INVALID_PRODUCER_EPOCH
