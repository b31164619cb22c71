"""Settings of brokers that clients have altered, as the coordinator publishes them for the supervisor.

The supervisor writes the version into the word `brokers_done` when all processes use these settings, when it
has logged why they cannot, or when another change of settings must end first.
"""

from __future__ import annotations

from msgspec import Struct


class BrokerSettings(Struct):
    """The altered settings as {node id: {key: text}}. The node id "" stands for all brokers."""

    version: int
    brokers: dict[str, dict[str, str]]
