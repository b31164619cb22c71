"""Follows the end offsets of topics in a bucket for a streaming query."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mpbroker.reading.bucket_catalog import VIEW_AGE_S, BucketCatalog
from mpbroker.reading.options import ReadOptions, TopicPartition
from mpbroker.reading.plan import PartitionBounds, selected


class BucketFollower:
    """Follows topics in a bucket: reads on in its ledger. (Protocol: Follower.)

    A bucket is as a broker at rest: it may be behind offsets that a query has read elsewhere.
    """

    is_at_rest = True

    def __init__(self, catalog: BucketCatalog, options: ReadOptions) -> None:
        self.catalog = self.restore_history = catalog
        self._options = options
        self._bounds: Mapping[TopicPartition, PartitionBounds] = {}
        self._read_at = 0.0

    def poll(self) -> Mapping[TopicPartition, PartitionBounds]:
        """See Follower."""
        if not self._bounds or time.monotonic() - self._read_at >= VIEW_AGE_S:
            is_new = self.catalog.view.refresh()
            if is_new or not self._bounds:
                self._bounds = self.catalog.bounds(selected(self.catalog, self._options))
            self._read_at = time.monotonic()
        return self._bounds

    def wait(self, timeout_s: float) -> None:
        """See Follower. The next poll may still find nothing new."""
        time.sleep(timeout_s)

    def close(self) -> None:
        """See Follower."""
        self.catalog.close()
