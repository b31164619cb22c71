"""The report of an import and of an export: whose directories they are, and how much is in them."""

from __future__ import annotations

from typing import Any

import msgspec

from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.migration.log_dirs import LogDirs


class Moved(msgspec.Struct):
    """A cluster that was moved to the other kind of broker, or would be."""

    cluster_id: str
    node_id: int
    topics: int
    partitions: int
    users: int
    acls: int
    quotas: int
    tokens: int


def counts(image: ClusterImage, found: LogDirs) -> dict[str, Any]:
    """Return the members of Moved."""
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
