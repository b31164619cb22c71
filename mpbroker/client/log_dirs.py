"""Asks brokers for their log directories (DescribeLogDirs), and finds those that are full."""

from __future__ import annotations

from typing import Final

from mpbroker.client.cluster import Cluster
from mpbroker.client.errors import ApiFailed, ClientError
from mpbroker.config.broker import ROOM_BYTES
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode

# Errors that a full disk may cause.
_MAYBE_FULL: Final = (
    *(ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR),
    *(ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE),
)


def described(
    cluster: Cluster, broker: int, wanted: list[m.DescribeLogDirsRequest.DescribableLogDirTopic] | None
) -> list[m.DescribeLogDirsResponse.DescribeLogDirsResult]:
    """Return a broker's log directories, with their partitions that are in `wanted` (None: all)."""
    response: m.DescribeLogDirsResponse = cluster.ask(broker, m.DescribeLogDirsRequest(wanted))
    if response.error_code:
        raise ApiFailed(f"log directories of broker {broker}", response.error_code)
    if not response.results:
        # Before version 3 the response has no error code: no results mean a refusal.
        raise ApiFailed(f"log directories of broker {broker}", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return sorted(response.results, key=lambda result: result.log_dir)


def name_full_disks(cluster: Cluster, error: ApiFailed) -> None:
    """Add the full log directories to the text of an error that they may have caused."""
    if error.code not in _MAYBE_FULL:
        return
    try:
        brokers = cluster.refresh().brokers
        full = [one for node in brokers for one in described(cluster, node.node_id, []) if is_full(one)]
    except ClientError:
        # A user without the permission to describe log directories gets the error as it is.
        return
    if full:
        names = " and ".join(f"{one.log_dir} ({one.usable_bytes:,} bytes left)" for one in full)
        error.advised(f". The disk of {names} is full. Free some space: retries succeed then")


def is_full(one: m.DescribeLogDirsResponse.DescribeLogDirsResult) -> bool:
    """Return whether a log directory is full; False if the broker does not report the free bytes."""
    return 0 <= one.usable_bytes < ROOM_BYTES
