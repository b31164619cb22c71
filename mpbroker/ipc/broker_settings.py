"""Settings of brokers that clients have altered, as the coordinator publishes them for the supervisor.

The supervisor writes the version into the word `brokers_done`, for which clients wait. It does so when all
processes use these settings, or when it has logged why they cannot. If another change of settings is under
way, it does so at once, and applies these settings afterwards.
"""

from __future__ import annotations

from msgspec import Struct


class BrokerSettings(Struct):
    """The altered settings as {node id: {key: text}}. The node id "" stands for all brokers."""

    version: int
    brokers: dict[str, dict[str, str]]
