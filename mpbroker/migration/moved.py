"""The report of an import or an export: the cluster and node of the directories, and their contents."""

from __future__ import annotations

from typing import Any

import msgspec

from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.migration.log_dirs import LogDirs


class Moved(msgspec.Struct, kw_only=True):
    """The identity and counts of a cluster that was moved or, in a dry run, would be moved.

    `segments` are those in an object store that changes hands, too.
    """

    cluster_id: str
    node_id: int
    topics: int
    partitions: int
    users: int
    acls: int
    quotas: int
    tokens: int
    segments: int = 0


def counts(image: ClusterImage, found: LogDirs) -> dict[str, Any]:
    """Return the fields of a `Moved` as keyword arguments."""
    return {
        "cluster_id": found.cluster_id,
        "node_id": found.node_id,
        "topics": len(image.topics),
        "partitions": sum(map(len, image.partitions.values())),
        "users": len({name for name, _ in image.credentials}),
        "acls": len(image.acls),
        "quotas": len(image.quotas),
        "tokens": len(image.tokens),
    }
