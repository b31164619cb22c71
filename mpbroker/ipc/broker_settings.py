"""Settings of brokers that clients have altered, as the coordinator publishes them for the supervisor.

The supervisor writes the version of these settings into the word `brokers_done` when all processes use them,
or when it has logged why they cannot. Clients that altered the settings wait for this. If another change is
under way, the supervisor writes the version at once, and applies the settings after that change.
"""

from __future__ import annotations

from msgspec import Struct


class BrokerSettings(Struct):
    """The altered settings as {node id: {key: text}}. The node id "" stands for all brokers."""

    version: int
    brokers: dict[str, dict[str, str]]
