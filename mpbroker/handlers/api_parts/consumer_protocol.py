"""Whether requests of the consumer protocol are served (Kafka: KafkaApis.isConsumerGroupProtocolEnabled)."""

from __future__ import annotations

from typing import Final

from mpbroker.handlers.context import RequestContext

REFUSED: Final = (
    "The broker has the consumer protocol switched off: add consumer to "
    "group.coordinator.rebalance.protocols, or set group.protocol=classic in the client."
)


def is_enabled(_context: RequestContext) -> bool:
    """Return True if the consumer protocol is served."""
    return True
