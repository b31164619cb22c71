"""Settings of brokers that clients have altered, as the coordinator publishes them for the supervisor.

The supervisor acknowledges a version in the word `brokers_done` when all processes follow it, when it has
logged why they cannot, or when another change under way delays them.
"""

from __future__ import annotations

from msgspec import Struct


class BrokerSettings(Struct):
    """Altered settings: for each node id, the values by key as texts. Node id "" stands for all brokers."""

    version: int
    brokers: dict[str, dict[str, str]]
