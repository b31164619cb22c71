"""What the coordinator tells the supervisor: the settings of brokers that clients have altered.

The supervisor answers with the version up to which it has done what it can: all processes follow, or it has
said why not, or they will when what is under way is done (word `brokers_done`).
"""

from __future__ import annotations

from msgspec import Struct


class BrokerSettings(Struct):
    """`brokers`: texts by key, by node id; "" is all of them."""

    version: int
    brokers: dict[str, dict[str, str]]
