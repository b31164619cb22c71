"""Limits how many partitions are created automatically, in topics that Metadata requests name.

A client creates topics by just naming them (auto.create.topics.enable), but must not use up all partitions of
the broker. CreateTopics and CreatePartitions are bounded only by the number of partitions that the broker can
have and by quotas (controller_mutation_rate). (Kafka does not limit automatic creation.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from mpbroker.coordinator.metadata.topic_rules import Refused
from mpbroker.protocol.errors import ErrorCode

# A quarter of the broker's partitions is reserved for topics that are created explicitly.
RESERVE_SHARE = 4
# Principals with a log line of their own; tokens may name very many.
LOGGED_MAX = 1_000

log = logging.getLogger("mpbroker.coordinator.metadata")


class _Topic(Protocol):
    @property
    def partitions(self) -> int: ...


class AutomaticTopics:
    """The topics that were created automatically for each principal since this coordinator started."""

    def __init__(self, partitions_max: int) -> None:
        self._for_all = partitions_max - partitions_max // RESERVE_SHARE
        self._ids: dict[str, list[bytes]] = {}
        self._logged: set[str] = set()

    def used(self, user: str, topics: Mapping[bytes, _Topic]) -> int:
        """Return how many partitions the user's automatic topics have. Slow: call it once per request."""
        return sum(topics[one].partitions for one in self._ids.get(user, ()) if one in topics)

    def check(self, user: str, more: int, used: int, partitions: int, share: int) -> None:
        """Raise Refused if `more` partitions may not be created automatically for `user`.

        `used`: the partitions that were created automatically for the user. `partitions`: how many the broker
        has. `share`: the most that may be created automatically for one principal.
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
        if user not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(user)
            log.warning("topics are not created automatically for %s: %s. Create them by name", user, why)
        raise Refused(ErrorCode.POLICY_VIOLATION, f"Automatic creation of topics: {why}.")

    def created(self, user: str, topic_id: bytes, topics: Mapping[bytes, _Topic], share: int) -> None:
        """Add a topic that is created automatically for `user`."""
        ids = self._ids.setdefault(user, [])
        # Ids of deleted topics stay in the list until it has twice as many ids as `share`.
        if len(ids) > 2 * share:
            ids[:] = [one for one in ids if one in topics]
        ids.append(topic_id)
