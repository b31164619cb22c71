"""The feature levels that stand at the beginning of a metadata log (Kafka: FeatureControlManager; KIP-584).

Kafka's tools and controllers read from them in which versions the records that follow may come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mpbroker.protocol.messages import FeatureLevelRecord

FEATURE_LEVELS: Final[Mapping[str, int]] = {"metadata.version": 30, "transaction.version": 2}
"""The levels of this version: 4.3-IV0 (MetadataVersion), and KIP-890 part 2."""


def feature_records() -> list[FeatureLevelRecord]:
    """Return the records with which a log begins."""
    return [FeatureLevelRecord(name=name, feature_level=level) for name, level in FEATURE_LEVELS.items()]
