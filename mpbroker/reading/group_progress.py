"""Commits a query's progress to a consumer group, so that tools that monitor group lag show it.

The query itself uses its checkpoint and never reads the group's offsets. So commits are best effort: a
failure is logged, and the commit is retried later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from mpbroker.client.cluster import Cluster, CoordinatorType
from mpbroker.client.committed_offsets import commit_errors, commit_request, has_members
from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import ClientError, FailedPrecondition
from mpbroker.reading.errors import SERVERS_ADVICE
from mpbroker.reading.options import ReadOptions, TopicPartition
from mpbroker.reading.remote_catalog import client_config, servers_of

# A query waits this long at most between its batches.
TIMEOUT_MS = 2_000
AFTER_FAILURE_S = 10.0

_LOG = logging.getLogger("mpbroker.spark")


class GroupProgress:
    """Commits offsets to a consumer group without joining it. Raises OptionError, ClientConfigError."""

    def __init__(self, group: str, options: ReadOptions) -> None:
        self._group = group
        config = client_config(options, ClientConfig())
        self._cluster = Cluster(servers_of(options.bootstrap_servers or ""), config, SERVERS_ADVICE)
        self._committed: tuple[Mapping[TopicPartition, int], str] = {}, ""
        self._next_at = 0.0
        self._coordinator: int | None = None

    def reached(
        self, offsets: Mapping[TopicPartition, int], *, is_last: bool = False, metadata: str = ""
    ) -> None:
        """Commit these offsets: all records below them have been processed. Each gets `metadata`.

        For AFTER_FAILURE_S after a failed commit, calls do nothing, except with `is_last`.
        """
        now = time.monotonic()
        if (offsets, metadata) == self._committed or (now < self._next_at and not is_last):
            return
        try:
            self._commit(offsets, metadata)
        except ClientError as error:
            self._coordinator = None
            self._next_at = now + AFTER_FAILURE_S
            _LOG.warning("group %s: the query's progress was not committed: %s", self._group, error)
            return
        self._committed = dict(offsets), metadata

    def _commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Commit the offsets now. Raises ClientError."""
        if self._coordinator is None:
            self._coordinator = self._cluster.coordinator(CoordinatorType.GROUP, self._group, TIMEOUT_MS)
        request = commit_request(self._group, offsets, metadata=metadata)
        for error in commit_errors(self._cluster.ask(self._coordinator, request, TIMEOUT_MS)):
            if has_members(error):
                raise FailedPrecondition(
                    "the group has members, which commit its offsets themselves: name a group of the "
                    "query's own in the option commitGroupId"
                )
            raise error
