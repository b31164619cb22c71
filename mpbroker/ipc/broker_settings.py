"""Settings of brokers that clients have altered, as the coordinator tells them to the supervisor.

The supervisor answers with the version up to which it has done what it can (word `brokers_done`): all
processes follow, or it has logged why not, or they will follow when what is under way is done.
"""

from __future__ import annotations

from msgspec import Struct


class BrokerSettings(Struct):
    """Altered settings as texts by key, by node id; node id "" stands for all brokers."""

    version: int
    brokers: dict[str, dict[str, str]]
