"""A check of the sizes of requests of members: JoinGroup, SyncGroup, ConsumerGroupHeartbeat."""

from __future__ import annotations

import logging

from mpbroker.handlers.context import RequestContext

log = logging.getLogger("mpbroker.handlers")


def is_too_large(context: RequestContext) -> bool:
    """Return True, and log a warning, if the request is larger than a record of the group may be.

    A classic group's record has the data of all members. In the consumer protocol a member's record has its
    topics. (Kafka takes any request into its memory, and answers UNKNOWN_SERVER_ERROR when the record cannot
    be written.)
    """
    most_bytes = context.broker.config.message_max_bytes
    if context.body_bytes <= most_bytes:
        return False
    log.warning(
        "%s has %d bytes and is refused: records have what members say, and message.max.bytes is %d",
        context,
        context.body_bytes,
        most_bytes,
    )
    return True
