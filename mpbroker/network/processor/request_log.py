"""The request log: while it is on, a line of JSON for each request that has ended (kafka.request.logger).

A handler describes request and response; this module adds the times that only the processor knows.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

log = logging.getLogger("mpbroker.kafka.request.logger")
log.setLevel(logging.DEBUG)


class Ended(NamedTuple):
    """A request that has ended. `described` is the handler's JSON object without the closing brace."""

    described: bytes
    total_ns: int
    request_queue_ns: int
    local_ns: int
    remote_ns: int
    throttle_ms: int
    response_queue_ns: int
    send_ns: int


def line(ended: Ended) -> str:
    """Return the JSON line of a request. Its times are in milliseconds with three decimals."""
    times = {
        "totalTimeMs": ended.total_ns,
        "requestQueueTimeMs": ended.request_queue_ns,
        "localTimeMs": ended.local_ns,
        "remoteTimeMs": ended.remote_ns,
        "throttleTimeMs": ended.throttle_ms * 1_000_000,
        "responseQueueTimeMs": ended.response_queue_ns,
        "sendTimeMs": ended.send_ns,
    }
    fields = ",".join(f'"{name}":{ns / 1e6:.3f}' for name, ns in times.items())
    return f"{ended.described.decode()},{fields}}}"


def write(ended: Ended) -> None:
    log.debug("Completed request:%s", line(ended))
