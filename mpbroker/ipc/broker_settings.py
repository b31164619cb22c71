"""Settings of brokers that clients have altered, as the coordinator publishes them for the supervisor.

The supervisor acknowledges a version (word `brokers_done`) as soon as all processes follow it, or it has
logged why they cannot, or a change under way delays them.
"""

from __future__ import annotations

from msgspec import Struct


class BrokerSettings(Struct):
    """Altered settings as texts by key, by node id; node id "" means all brokers."""

    version: int
    brokers: dict[str, dict[str, str]]
