"""What topics that Metadata requests create may take of the broker's partitions.

A client that only names topics creates them (auto.create.topics.enable), so it must not use up the partitions
of all others. What administrators create with CreateTopics and CreatePartitions is bounded by the broker's
partitions and by quotas (controller_mutation_rate) alone. (Kafka has no such bounds.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from mpbroker.coordinator.metadata.topic_rules import Refused
from mpbroker.protocol.errors import ErrorCode

# A quarter of the broker's partitions is kept for those who create topics by name and number.
RESERVE_SHARE = 4
# Principals that are told apart in the log; tokens may name very many.
TOLD_MAX = 1_000

log = logging.getLogger("mpbroker.coordinator.metadata")


class _Topic(Protocol):
    @property
    def partitions(self) -> int: ...


class AutomaticTopics:
    """Topics that principals have had created, since this coordinator began."""

    def __init__(self, partitions_max: int) -> None:
        self._for_all = partitions_max - partitions_max // RESERVE_SHARE
        self._ids: dict[str, list[bytes]] = {}
        self._told: set[str] = set()

    def used(self, user: str, topics: Mapping[bytes, _Topic]) -> int:
        """Return how many partitions `user` has. It looks at each topic: ask once for a request."""
        return sum(topics[one].partitions for one in self._ids.get(user, ()) if one in topics)

    def check(self, user: str, more: int, used: int, partitions: int, share: int) -> None:
        """Check that `user`, who has `used` partitions, may have `more`; the broker has `partitions`.

        `share` is what one principal may have. Raises Refused.
        """
        if used + more > share:
            why = (
                f"{user} has {used} partitions of topics that were created automatically, and "
                f"max.auto.created.partitions.per.principal={share}"
            )
        elif partitions + more > self._for_all:
            why = (
                f"the broker has {partitions} partitions, and topics are created automatically up to "
                f"{self._for_all}"
            )
        else:
            return
        if user not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(user)
            log.warning("topics are not created automatically for %s: %s. Create them by name", user, why)
        raise Refused(ErrorCode.POLICY_VIOLATION, f"Automatic creation of topics: {why}.")

    def created(self, user: str, topic_id: bytes, topics: Mapping[bytes, _Topic], share: int) -> None:
        """Note a topic that is about to be created. One that never is counts for nothing."""
        ids = self._ids.setdefault(user, [])
        # Topics that are gone stay here until there are twice as many as the principal may have.
        if len(ids) > 2 * share:
            ids[:] = [one for one in ids if one in topics]
        ids.append(topic_id)
