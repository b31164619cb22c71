"""The APIs whose requests may be served together with others of their connection, each with the reason.

A connection has a window of requests (max.in.flight.requests.per.connection), which only requests of these
APIs enter. A request of another API waits until the window is empty, and the next request is read after its
answer, as Kafka does with every request. Answers are written in the order of the requests.
"""

from __future__ import annotations

from mpbroker.protocol.api_keys import ApiKey

IN_WINDOW = {
    ApiKey.PRODUCE: (
        "Appends keep their order: one handler passes them on, rings are FIFO, and a partition has one log "
        "worker. They read nothing that others of the window change, and all wait for the same commit round."
    ),
    ApiKey.OFFSET_COMMIT: (
        "Commits keep their order on the way to the one coordinator. They read the membership, which no "
        "request of the window changes. One of 3,000 bytes or more is alone: it may be served in pieces, "
        "and others would overtake it."
    ),
    ApiKey.HEARTBEAT: "It changes nothing that the others read, and must not wait for a disk.",
}
